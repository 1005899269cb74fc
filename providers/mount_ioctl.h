/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What libckpt says to a ckptfs mount and asks of it: three ioctls. Shared by
 * the library and fs/; constants and structs only, all fields little-endian as
 * the host is. Anywhere else they fail with ENOTTY, which is how the library
 * knows.
 */
#ifndef CKPT_PROVIDERS_MOUNT_IOCTL_H
#define CKPT_PROVIDERS_MOUNT_IOCTL_H

#include <stdint.h>
#include <sys/ioctl.h>

#define CKPT_IOC_VERSION 1u

/*
 * On a directory: a file `name`, len bytes long, will be created in it by the
 * caller now. Its tier is chosen for that size; in DRAM all of it is promised.
 * flags come back. A hint: it is forgotten after a while, and costs nothing if
 * no such file is created.
 */
struct ckpt_expect {
	uint32_t version; /* CKPT_IOC_VERSION */
	uint32_t flags;   /* out: CKPT_MOUNT_* */
	uint64_t len;
	char name[256]; /* with its NUL */
};
#define CKPT_IOC_EXPECT _IOWR('C', 2, struct ckpt_expect)

#define CKPT_MOUNT_PASSTHROUGH 1u /* a mapping is the tier itself */
#define CKPT_MOUNT_REMOTE 2u      /* it has a remote */

/*
 * On a file open for writing: its bytes [off, off + len) will not change any
 * more, so they may be flushed before the file is closed. (If they do change
 * that costs time, not correctness: sums are taken again at the seal.)
 */
struct ckpt_filled {
	uint64_t off;
	uint64_t len;
};
#define CKPT_IOC_FILLED _IOW('C', 3, struct ckpt_filled)

/*
 * On a directory: has file `ino`, as it is now, reached a level? Waits a moment
 * for it (100 ms or so); ask again. The first time seq is 0; it comes back with
 * lineage and mount, and all are given back, so that later changes are not waited for. If
 * the mount has lost since what had that number (its host lost power), or it is
 * another mount, err is -ESTALE.
 */
struct ckpt_reached {
	uint64_t ino;
	uint64_t seq;     /* in, out */
	uint32_t level;   /* enum ckpt_level, CKPT_DRAM or more */
	uint32_t reached; /* out: 1 if so */
	int32_t err;      /* out: 0, or -errno why it cannot get there */
	uint32_t lineage; /* in, out */
	uint32_t mount;   /* in, out: which one */
	uint32_t unused;
};
#define CKPT_IOC_REACHED _IOWR('C', 4, struct ckpt_reached)

#endif
