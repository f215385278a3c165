// SPDX-License-Identifier: MIT OR GPL-2.0
// Stand-in for the part of MOFED's ib_core that nvidia_peermem registers with. It names its clients in
// /sys/module/peer_memory/parameters/clients, and never calls them: there is no network adapter.
#include <linux/module.h>
#include <linux/moduleparam.h>
#include <linux/mutex.h>
#include <linux/sysfs.h>
#include <rdma/peer_mem.h>

static const struct peer_memory_client *clients[4];
static DEFINE_MUTEX(held);

static int ignore(void *handle, u64 core_context)
{
	return 0;
}

void *ib_register_peer_memory_client(const struct peer_memory_client *client, invalidate_peer_memory *callback)
{
	void *handle = NULL;
	int i;

	mutex_lock(&held);
	for (i = 0; !handle && i < ARRAY_SIZE(clients); i++) {
		if (!clients[i]) {
			clients[i] = client;
			handle = &clients[i];
		}
	}
	mutex_unlock(&held);
	if (handle && callback)
		*callback = ignore;
	return handle;
}
EXPORT_SYMBOL(ib_register_peer_memory_client);

void ib_unregister_peer_memory_client(void *handle)
{
	mutex_lock(&held);
	*(const struct peer_memory_client **)handle = NULL;
	mutex_unlock(&held);
}
EXPORT_SYMBOL(ib_unregister_peer_memory_client);

static int show(char *text, const struct kernel_param *parameter)
{
	int i, length = 0;

	mutex_lock(&held);
	for (i = 0; i < ARRAY_SIZE(clients); i++) {
		if (clients[i])
			length += sysfs_emit_at(text, length, "%s\n", clients[i]->name);
	}
	mutex_unlock(&held);
	return length;
}

static const struct kernel_param_ops names = { .get = show };
module_param_cb(clients, &names, NULL, 0444);
MODULE_LICENSE("Dual MIT/GPL");
MODULE_DESCRIPTION("stand-in for the peer memory interface of MOFED's ib_core");
