/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/* Stand-in for MOFED's <rdma/peer_mem.h>, with the types of the driver's own nvidia-peermem/peer_mem.h, which
 * nvidia-peermem.c takes. */
#ifndef PEER_MEM_H
#define PEER_MEM_H

#include <linux/device.h>
#include <linux/scatterlist.h>
#include <linux/types.h>

#define IB_PEER_MEMORY_NAME_MAX 64
#define IB_PEER_MEMORY_VER_MAX 16
#define PEER_MEM_INVALIDATE_UNMAPS 1

typedef int (*invalidate_peer_memory)(void *handle, u64 core_context);

struct peer_memory_client {
	char name[IB_PEER_MEMORY_NAME_MAX];
	char version[IB_PEER_MEMORY_VER_MAX];
	int (*acquire)(unsigned long addr, size_t size, void *data, char *name, void **context);
	int (*get_pages)(unsigned long addr, size_t size, int write, int force, struct sg_table *sg_head,
			 void *context, u64 core_context);
	int (*dma_map)(struct sg_table *sg_head, void *context, struct device *device, int dmasync, int *nmap);
	int (*dma_unmap)(struct sg_table *sg_head, void *context, struct device *device);
	void (*put_pages)(struct sg_table *sg_head, void *context);
	unsigned long (*get_page_size)(void *context);
	void (*release)(void *context);
};

struct peer_memory_client_ex {
	struct peer_memory_client client;
	size_t ex_size;
	u32 flags;
};

void *ib_register_peer_memory_client(const struct peer_memory_client *client, invalidate_peer_memory *callback);
void ib_unregister_peer_memory_client(void *handle);

#endif
