//! `manyheads data` and `manyheads bench data`, and training on what they make.

mod support;

use std::fs;

use support::{Place, assert_same_end};

#[test]
fn verify_finds_exactly_the_broken_images_and_those_that_come_twice() {
    let place = Place::new();
    place.images(6, 1);
    let sound = place.run(&["data", "verify", "train", "--json"]).expect(0).json();
    assert_eq!((&sound["images"], &sound["ok"]), (&60.into(), &60.into()));
    assert_eq!(sound["broken"].as_array().unwrap().len(), 0);

    let bytes = fs::read(place.path("train/class3/0002.png")).unwrap();
    place.write("train/class1/0001.png", "no image at all");
    fs::write(place.path("train/class3/0002.png"), &bytes[..bytes.len() / 2]).unwrap();
    fs::write(place.path("train/class5/0000.png"), b"").unwrap();
    fs::copy(place.path("train/class7/0000.png"), place.path("train/class8/0000.png")).unwrap();
    let report = place.run(&["data", "verify", "train", "--json"]).expect(1).json();
    let broken: Vec<&str> = report["broken"].as_array().unwrap().iter().map(|b| b["name"].as_str().unwrap()).collect();
    assert_eq!(broken.len(), 3, "{report}");
    for (name, file) in broken.iter().zip(["class1/0001.png", "class3/0002.png", "class5/0000.png"]) {
        assert!(name.ends_with(file), "{name}");
    }
    let same = report["duplicates"].as_array().unwrap();
    assert_eq!((same.len(), &same[0]["across_classes"]), (1, &true.into()), "{report}");
    let text = place.run(&["data", "verify", "train", "--no-duplicates"]).expect(1);
    assert!(text.stdout.contains("class1/0001.png: "), "a broken image is named\n{}", text.stdout);
    assert!(text.stdout.contains("57 sound, 3 broken, 0 groups"), "{}", text.stdout);
    place.run(&["data", "verify", "nowhere"]).expect(1).says(&["nowhere"]);
}

#[test]
fn a_packed_dataset_trains_the_same_run_and_unpacks_to_the_same_bytes() {
    let place = Place::new();
    place.images(6, 3);
    place.config("[train]\nepochs = 1\nbatch_size = 16\naccumulate = 1\n[log]\nevery_steps = 1\n");
    for half in ["train", "val"] {
        let out = format!("{half}.pack");
        let done = place.run(&["data", "pack", half, "--out", &out, "--json"]).expect(0).json();
        assert_eq!(done["items"], if half == "train" { 60 } else { 30 });
        place.run(&["data", "pack", half, "--out", &out]).expect(1).says(&[&out, "overwrite"]);
    }
    place.run(&["train", "tiny.toml", "--device", "cpu", "--out", "folder"]).expect(0);
    let sets = ["data.train=train.pack", "data.val=val.pack"];
    let mut args = vec!["train", "tiny.toml", "--device", "cpu", "--out", "packed"];
    args.extend(sets.iter().flat_map(|set| ["--set", set]));
    place.run(&args).expect(0);
    assert_same_end(&place.path("folder"), &place.path("packed"));

    place.run(&["data", "unpack", "train.pack", "--out", "unpacked"]).expect(0);
    for class in 0..10 {
        for image in 0..6 {
            let file = format!("class{class}/{image:04}.png");
            let (a, b) = (fs::read(place.path("train").join(&file)), fs::read(place.path("unpacked").join(&file)));
            assert_eq!(a.unwrap(), b.unwrap(), "{file}");
        }
    }
    // A flipped bit of an image is found, with its name.
    let mut bytes = fs::read(place.path("train.pack")).unwrap();
    let image = fs::read(place.path("train/class4/0003.png")).unwrap();
    let at = bytes.windows(image.len()).position(|window| window == image).expect("the bytes are in the file");
    bytes[at + image.len() / 2] ^= 4;
    fs::write(place.path("train.pack"), bytes).unwrap();
    let report = place.run(&["data", "verify", "train.pack", "--json"]).expect(1).json();
    assert_eq!(report["broken"].as_array().unwrap().len(), 1, "{report}");
    assert!(report["broken"][0]["name"].as_str().unwrap().ends_with("class4/0003.png"), "{report}");
}

#[test]
fn a_preview_is_a_picture_of_what_the_network_sees() {
    let place = Place::new();
    place.images(2, 1);
    place.config("");
    let args = ["data", "preview", "--config", "tiny.toml", "--rows", "3", "--columns", "4", "--out", "a.png"];
    place.run(&args).expect(0);
    let bytes = fs::read(place.path("a.png")).unwrap();
    let pixels = manyheads_data::decode_rgb(&bytes, "a.png").unwrap();
    assert_eq!((pixels.width, pixels.height), (5 * 28, 3 * 28));
    // Another epoch augments differently, the same one alike.
    let again = ["data", "preview", "--config", "tiny.toml", "--rows", "3", "--columns", "4", "--out", "b.png"];
    place.run(&again).expect(0);
    assert_eq!(bytes, fs::read(place.path("b.png")).unwrap());
    let mut other = again.to_vec();
    other.extend(["--epoch", "9"]);
    place.run(&other).expect(0);
    assert_ne!(bytes, fs::read(place.path("b.png")).unwrap());
    // Without a configuration the images alone are enough, and a policy is a setting.
    place
        .run(&["data", "preview", "train", "--set", "augment.auto=rand-m9-mstd0.5-inc1", "--rows", "1", "--out", "c.png"])
        .expect(0);
    place
        .run(&["data", "preview", "train", "--set", "augment.auto=rand-m9-wrong3", "--out", "d.png"])
        .expect(2)
        .says(&["wrong3"]);
}

#[test]
fn the_loader_is_measured_stage_by_stage() {
    let place = Place::new();
    place.images(3, 1);
    let args = ["bench", "data", "train", "--seconds", "0.05", "--threads", "1,2", "--json", "--set", "model.image_size=32"];
    let report = place.run(&args).expect(0).json();
    assert!(report["images_per_second"].as_f64().unwrap() > 0.0);
    let stages: Vec<&str> = report["measurements"].as_array().unwrap().iter().map(|m| m["stage"].as_str().unwrap()).collect();
    assert_eq!(stages, ["read", "decode", "sample", "loader", "read", "decode", "sample", "loader"]);
    let text = place.run(&["bench", "data", "train", "--seconds", "0.05", "--eval", "--set", "model.patch_size=16"]).expect(0);
    assert!(text.stdout.contains("images/s"), "{}", text.stdout);
    place.run(&["bench", "data", "train", "--seconds", "0"]).expect(2).says(&["--seconds"]);
}

/// One dataset as a flat folder with labels: the way of ImageNet's validation images.
#[test]
fn images_without_class_folders_need_labels_and_are_evaluated_with_them() {
    let place = Place::new();
    place.images(6, 3);
    place.config("[train]\nepochs = 1\nbatch_size = 20\naccumulate = 1\n");
    place.run(&["train", "tiny.toml", "--device", "cpu", "--out", "run"]).expect(0);
    let want = place.run(&["eval", "run", "--json"]).expect(0).json();
    let mut labels = String::new();
    fs::create_dir(place.path("flat")).unwrap();
    for class in 0..10 {
        for image in 0..3 {
            let name = format!("{class}_{image}.png");
            fs::copy(place.path(&format!("val/class{class}/{image:04}.png")), place.path("flat").join(&name)).unwrap();
            labels += &format!("{name} class{class}\n");
        }
    }
    place.write("labels.txt", &labels);
    place.run(&["eval", "run", "--data", "flat"]).expect(1).says(&["flat", "labels"]);
    let got = place.run(&["eval", "run", "--data", "flat", "--labels", "labels.txt", "--json"]).expect(0).json();
    for key in ["top1", "top5", "n"] {
        assert_eq!(got[key], want[key], "{key}");
    }
}
