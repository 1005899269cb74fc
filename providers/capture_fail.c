/* SPDX-License-Identifier: Apache-2.0 */
/* What went wrong with a capture, in words that name the file and the remedy. */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "providers/capture.h"

static const char *remedy(int err)
{
	switch (err) {
	case -ENOSPC:
		return ": free some, or give the mount more";
	case -EDQUOT:
		return ": the quota is used up";
	case -ENOENT:
		return ": make its directory first";
	case -EACCES:
	case -EPERM:
	case -EROFS:
		return ": not writable for this user";
	case -ENOTCONN:
		return ": the mount is gone; mount it again";
	case -EFAULT:
		return " (its memory is gone, or a provider broke its contract)";
	case -EISDIR:
		return ": give the name of a file";
	default:
		return "";
	}
}

void capture_fail_locked(struct ckpt_capture *cap, int err, const char *what)
{
	if (cap->error || cap->ended || (cap->naming && err == -ECANCELED))
		return;
	cap->error = err;
	if (err == -ECANCELED)
		snprintf(cap->text, sizeof(cap->text),
			 "the capture of '%.400s' was cancelled", cap->path);
	else
		snprintf(cap->text, sizeof(cap->text),
			 "cannot %s '%.400s': %s%s", what, cap->path,
			 strerror(-err), remedy(err));
	pthread_cond_broadcast(&cap->ck->work);
	pthread_cond_broadcast(&cap->ck->changed);
}
