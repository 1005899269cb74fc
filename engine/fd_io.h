/* SPDX-License-Identifier: Apache-2.0 */
/* All bytes of a range of a file, or an error. Threads: any. */
#ifndef CKPT_ENGINE_FD_IO_H
#define CKPT_ENGINE_FD_IO_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "metadata/compiler.h"

/* As pread(2); less than len only at the end of the file, where it reads once
 * more: not for O_DIRECT. -errno */
MUST_CHECK ssize_t pread_most(int fd, void *buf, size_t len, uint64_t off);
/* As pread(2). -EBADMSG: the file is shorter. */
MUST_CHECK int pread_all(int fd, void *buf, size_t len, uint64_t off);
/* As pwrite(2). */
MUST_CHECK int pwrite_all(int fd, const void *buf, size_t len, uint64_t off);

#endif
