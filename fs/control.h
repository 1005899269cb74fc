/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The control ioctl: how ckptctl talks to the daemon. It is done on a
 * directory of the mount, so whoever may not see the mount cannot ask, and
 * the kernel says truly who asks. It is about all of the mount, or about that
 * directory, or about something in it that is no directory: of other inodes it
 * is -ENOENT, so that nobody asks about what he could not open. Shared by both programs; depends on nothing
 * else here.
 *
 * The same struct goes in and comes out. The ioctl itself fails only where
 * there is no ckptfs (ENOTTY) or the message is malformed (EINVAL); what came
 * of the request is in err.
 *
 * A level remote where there is no remote is -ENODEV; -EAGAIN: too many ask at
 * once, try again soon.
 *
 * Who may: everybody may ask for the state and wait; CONTROL_EVICT and
 * CONTROL_DRAIN are for whoever mounted it and for root (-EPERM).
 */
#ifndef CKPT_FS_CONTROL_H
#define CKPT_FS_CONTROL_H

#include <stdint.h>
#include <sys/ioctl.h>

#define CONTROL_VERSION 2
#define CONTROL_TEXT_LEN 8192

struct control_msg {
	uint32_t version; /* CONTROL_VERSION; else err is -EPROTO */
	uint32_t op;      /* enum control_op */
	int32_t err;      /* out: 0 or -errno */
	uint32_t len;     /* bytes in text */
	uint64_t ino;     /* in: what it is about; 0: all of the mount */
	uint64_t seq;     /* in or out: a sequence number */
	uint64_t arg;     /* see the operations */
	uint64_t offset;  /* see the operations */
	uint64_t total;   /* out: see the operations */
	char text[CONTROL_TEXT_LEN];
};

enum control_op {
	/* Out: JSON text, from offset on; total: its length. Read again from
	 * the start if total changed between two pieces. */
	CONTROL_STATUS = 1,
	/* In: ino (0: the directory itself). Out: JSON text, as above, of a
	 * file or a whole tree. */
	CONTROL_PATH_STATE = 2,
	/* Settles what was closed. Out: seq, the largest number in the tree at
	 * ino (0 or the root: the newest there is). */
	CONTROL_SEAL = 3,
	/* In: seq, arg: level, CONTROL_WAIT if somebody waits (the answer may
	 * then take a moment). Out: arg 1 if it has, else 0; offset: accepted
	 * bytes that are not on that level yet. err: why it cannot get there. */
	CONTROL_REACHED = 4,
	/* In: ino, arg: level. Out: total: bytes freed, arg: files. */
	CONTROL_EVICT = 5,
	/* As CONTROL_REACHED, for all there is, also what comes meanwhile. */
	CONTROL_DRAIN = 6,
};

#define CONTROL_LEVEL(arg) ((arg)&0xff) /* enum level: dram, nvme, remote */
#define CONTROL_WAIT 0x100u

#define CONTROL_IOCTL _IOWR('C', 1, struct control_msg)

#endif
