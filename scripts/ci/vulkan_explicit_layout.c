/* A Vulkan layer for scripts/ci/spirv_kernels.sh: it says of a driver without VK_KHR_workgroup_memory_explicit_layout that it has it, and
 * writes every shader that is made into the folder $SPIRV_KERNELS.
 *
 * CubeCL 0.11.3 puts shared memory into valid SPIR-V only where a driver has that extension, as those of NVIDIA, AMD and Intel do. Mesa's
 * software renderer does not offer it, though its compiler reads what the extension is about. */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <vulkan/vk_layer.h>
#include <vulkan/vulkan.h>

#define EXTENSION VK_KHR_WORKGROUP_MEMORY_EXPLICIT_LAYOUT_EXTENSION_NAME
#define FEATURES VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_WORKGROUP_MEMORY_EXPLICIT_LAYOUT_FEATURES_KHR

static PFN_vkGetInstanceProcAddr next_instance;
static PFN_vkGetDeviceProcAddr next_device;

/* The layer below, which the loader tells of only while an instance or a device is made. */
static PFN_vkEnumerateDeviceExtensionProperties next_extensions;
static PFN_vkGetPhysicalDeviceFeatures2 next_features;
static PFN_vkCreateDevice next_create_device;
static PFN_vkCreateShaderModule next_create_shader;

/* What the loader put into a chain of structures for us: the layer below. */
static void *link_of(const void *chain, VkStructureType type) {
    for (VkBaseOutStructure *at = (VkBaseOutStructure *)chain; at; at = at->pNext) {
        if (at->sType == type && *(VkLayerFunction *)(at + 1) == VK_LAYER_LINK_INFO) return at;
    }
    return NULL;
}

static VkResult create_instance(const VkInstanceCreateInfo *info, const VkAllocationCallbacks *allocator, VkInstance *out) {
    VkLayerInstanceCreateInfo *link = link_of(info->pNext, VK_STRUCTURE_TYPE_LOADER_INSTANCE_CREATE_INFO);
    if (!link) return VK_ERROR_INITIALIZATION_FAILED;
    next_instance = link->u.pLayerInfo->pfnNextGetInstanceProcAddr;
    link->u.pLayerInfo = link->u.pLayerInfo->pNext;
    PFN_vkCreateInstance create = (PFN_vkCreateInstance)next_instance(NULL, "vkCreateInstance");
    VkResult result = create(info, allocator, out);
    if (result == VK_SUCCESS) {
        next_extensions = (PFN_vkEnumerateDeviceExtensionProperties)next_instance(*out, "vkEnumerateDeviceExtensionProperties");
        next_features = (PFN_vkGetPhysicalDeviceFeatures2)next_instance(*out, "vkGetPhysicalDeviceFeatures2");
        next_create_device = (PFN_vkCreateDevice)next_instance(*out, "vkCreateDevice");
    }
    return result;
}

static int has_extension(VkPhysicalDevice device) {
    uint32_t count = 0;
    int found = 0;
    next_extensions(device, NULL, &count, NULL);
    VkExtensionProperties *properties = calloc(count + 1, sizeof(*properties));
    next_extensions(device, NULL, &count, properties);
    for (uint32_t i = 0; i < count; i++) found |= !strcmp(properties[i].extensionName, EXTENSION);
    free(properties);
    return found;
}

static VkResult enumerate_extensions(VkPhysicalDevice device, const char *layer, uint32_t *count, VkExtensionProperties *properties) {
    uint32_t room = *count;
    VkResult result = next_extensions(device, layer, count, properties);
    if (layer || result != VK_SUCCESS || has_extension(device)) return result;
    if (properties) {
        if (*count == room) return VK_INCOMPLETE;
        strcpy(properties[*count].extensionName, EXTENSION);
        properties[*count].specVersion = 1;
    }
    *count += 1;
    return VK_SUCCESS;
}

static void features(VkPhysicalDevice device, VkPhysicalDeviceFeatures2 *out) {
    next_features(device, out);
    if (has_extension(device)) return;
    for (VkBaseOutStructure *at = out->pNext; at; at = at->pNext) {
        if (at->sType != FEATURES) continue;
        VkPhysicalDeviceWorkgroupMemoryExplicitLayoutFeaturesKHR *layout = (void *)at;
        layout->workgroupMemoryExplicitLayout = VK_TRUE;
        layout->workgroupMemoryExplicitLayoutScalarBlockLayout = VK_TRUE;
        layout->workgroupMemoryExplicitLayout8BitAccess = VK_TRUE;
        layout->workgroupMemoryExplicitLayout16BitAccess = VK_TRUE;
    }
}

/* A driver without the extension hears nothing of it. */
static VkResult create_device(VkPhysicalDevice physical, const VkDeviceCreateInfo *info, const VkAllocationCallbacks *allocator, VkDevice *out) {
    VkLayerDeviceCreateInfo *link = link_of(info->pNext, VK_STRUCTURE_TYPE_LOADER_DEVICE_CREATE_INFO);
    if (!link) return VK_ERROR_INITIALIZATION_FAILED;
    next_device = link->u.pLayerInfo->pfnNextGetDeviceProcAddr;
    link->u.pLayerInfo = link->u.pLayerInfo->pNext;
    int present = has_extension(physical);
    VkDeviceCreateInfo own = *info;
    const char **names = calloc(info->enabledExtensionCount + 1, sizeof(*names));
    own.enabledExtensionCount = 0;
    for (uint32_t i = 0; i < info->enabledExtensionCount; i++) {
        if (present || strcmp(info->ppEnabledExtensionNames[i], EXTENSION)) names[own.enabledExtensionCount++] = info->ppEnabledExtensionNames[i];
    }
    own.ppEnabledExtensionNames = names;
    for (VkBaseOutStructure *at = (VkBaseOutStructure *)&own; at->pNext;) {
        if (!present && at->pNext->sType == FEATURES) at->pNext = at->pNext->pNext;
        else at = at->pNext;
    }
    VkResult result = next_create_device(physical, &own, allocator, out);
    if (result == VK_SUCCESS) next_create_shader = (PFN_vkCreateShaderModule)next_device(*out, "vkCreateShaderModule");
    free(names);
    return result;
}

static VkResult create_shader(VkDevice device, const VkShaderModuleCreateInfo *info, const VkAllocationCallbacks *allocator, VkShaderModule *out) {
    static atomic_int count;
    char path[4096];
    const char *folder = getenv("SPIRV_KERNELS");
    if (folder) {
        snprintf(path, sizeof(path), "%s/%05d.spv", folder, atomic_fetch_add(&count, 1));
        FILE *file = fopen(path, "wb");
        if (!file || fwrite(info->pCode, 1, info->codeSize, file) != info->codeSize || fclose(file)) {
            fprintf(stderr, "%s cannot be written\n", path);
            abort();
        }
    }
    return next_create_shader(device, info, allocator, out);
}

static PFN_vkVoidFunction own(const char *name) {
    if (!strcmp(name, "vkCreateInstance")) return (PFN_vkVoidFunction)create_instance;
    if (!strcmp(name, "vkEnumerateDeviceExtensionProperties")) return (PFN_vkVoidFunction)enumerate_extensions;
    if (!strcmp(name, "vkGetPhysicalDeviceFeatures2") || !strcmp(name, "vkGetPhysicalDeviceFeatures2KHR")) return (PFN_vkVoidFunction)features;
    if (!strcmp(name, "vkCreateDevice")) return (PFN_vkVoidFunction)create_device;
    if (!strcmp(name, "vkCreateShaderModule")) return (PFN_vkVoidFunction)create_shader;
    return NULL;
}

static PFN_vkVoidFunction of_device(VkDevice device, const char *name) {
    PFN_vkVoidFunction function = own(name);
    return function ? function : next_device(device, name);
}

static PFN_vkVoidFunction of_instance(VkInstance of, const char *name) {
    if (!strcmp(name, "vkGetDeviceProcAddr")) return (PFN_vkVoidFunction)of_device;
    PFN_vkVoidFunction function = own(name);
    if (function || !of) return function;
    return next_instance(of, name);
}

VkResult vkNegotiateLoaderLayerInterfaceVersion(VkNegotiateLayerInterface *interface) {
    interface->loaderLayerInterfaceVersion = 2;
    interface->pfnGetInstanceProcAddr = of_instance;
    interface->pfnGetDeviceProcAddr = of_device;
    interface->pfnGetPhysicalDeviceProcAddr = NULL;
    return VK_SUCCESS;
}
