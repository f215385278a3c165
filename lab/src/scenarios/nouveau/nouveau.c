// SPDX-License-Identifier: MIT OR GPL-2.0
// Stand-in for nouveau: a PCI driver of that name for NVIDIA's display devices, with DRM nodes that a
// process can hold open. It does not access the device. nouveau itself does not bind to the simulated
// GPU, which has no VBIOS ("bios: unable to locate usable image").
#include <linux/module.h>
#include <linux/pci.h>
#include <drm/drm_drv.h>
#include <drm/drm_file.h>
#include <drm/drm_ioctl.h>

static int runpm = -1;
module_param(runpm, int, 0400);

static const struct file_operations nodes = {
	.owner = THIS_MODULE,
	.open = drm_open,
	.release = drm_release,
	.unlocked_ioctl = drm_ioctl,
	.llseek = noop_llseek,
};

static const struct drm_driver display = {
	.driver_features = DRIVER_RENDER,
	.fops = &nodes,
	.name = "nouveau",
	.desc = "stand-in",
	.date = "20260101",
	.major = 1,
};

static int take(struct pci_dev *device, const struct pci_device_id *id)
{
	struct drm_device *drm = drm_dev_alloc(&display, &device->dev);
	int failed;

	if (IS_ERR(drm))
		return PTR_ERR(drm);
	failed = drm_dev_register(drm, 0);
	if (failed)
		drm_dev_put(drm);
	else
		pci_set_drvdata(device, drm);
	return failed;
}

static void release(struct pci_dev *device)
{
	struct drm_device *drm = pci_get_drvdata(device);

	drm_dev_unregister(drm);
	drm_dev_put(drm);
}

static const struct pci_device_id devices[] = {
	{ PCI_DEVICE(PCI_VENDOR_ID_NVIDIA, PCI_ANY_ID), .class = 0x030000, .class_mask = 0xff0000 },
	{ }
};
MODULE_DEVICE_TABLE(pci, devices);

static struct pci_driver stand_in = {
	.name = "nouveau", .id_table = devices, .probe = take, .remove = release,
};
module_pci_driver(stand_in);
MODULE_LICENSE("Dual MIT/GPL");
MODULE_DESCRIPTION("stand-in for nouveau on a simulated GPU");
