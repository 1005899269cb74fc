/* SPDX-License-Identifier: Apache-2.0 */
/* Short reads and writes, and signals, are nobody's business but this file's. */
#include "engine/fd_io.h"

#include <errno.h>
#include <unistd.h>

ssize_t pread_most(int fd, void *buf, size_t len, uint64_t off)
{
	size_t done = 0;

	while (done < len) {
		ssize_t n = pread(fd, (char *)buf + done, len - done,
				  (off_t)(off + done));

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return -errno;
		if (!n)
			break;
		done += (size_t)n;
	}
	return (ssize_t)done;
}

int pread_all(int fd, void *buf, size_t len, uint64_t off)
{
	ssize_t n = pread_most(fd, buf, len, off);

	if (n < 0)
		return (int)n;
	return (size_t)n < len ? -EBADMSG : 0;
}

int pwrite_all(int fd, const void *buf, size_t len, uint64_t off)
{
	for (size_t done = 0; done < len;) {
		ssize_t n = pwrite(fd, (const char *)buf + done, len - done,
				   (off_t)(off + done));

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return n ? -errno : -EIO;
		done += (size_t)n;
	}
	return 0;
}
