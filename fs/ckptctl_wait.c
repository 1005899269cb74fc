/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `wait` and `drain`: ask again and again whether it is there. The daemon
 * holds each question for a moment, and knows by it that somebody waits; so
 * there is no sleep here.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "fs/ckptctl.h"

struct waiting {
	const struct ctl_mount *mnt;
	uint32_t op;
	uint64_t seq;
	enum ctl_level level;
	double begin_s, timeout_s;
	uint64_t most; /* bytes behind, at their most */
	bool bar;
};

static double now_s(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (double)ts.tv_sec + (double)ts.tv_nsec / 1e9;
}

static void draw(struct waiting *w, uint64_t behind)
{
	if (!w->bar)
		return;
	if (behind > w->most)
		w->most = behind;
	ctl_bar_draw(ctl_level_names[w->level], behind, w->most,
		     now_s() - w->begin_s);
}

static bool time_is_over(const struct waiting *w)
{
	return w->timeout_s >= 0 && now_s() - w->begin_s >= w->timeout_s;
}

static int fail_at(struct waiting *w, int err)
{
	if (w->bar)
		ctl_bar_clear();
	return ctl_fail("'%s' cannot reach %s: %s", w->mnt->path,
			ctl_level_names[w->level], ctl_error_text(err));
}

/* An exit status. */
static int wait_for(struct waiting *w)
{
	for (;;) {
		struct control_msg m = { .op = w->op,
					 .seq = w->seq,
					 .arg = w->level | CONTROL_WAIT };

		if (ctl_call(w->mnt, &m))
			return CTL_ERROR;
		if (m.err)
			return fail_at(w, m.err);
		if (m.arg)
			break;
		if (time_is_over(w)) {
			if (w->bar)
				ctl_bar_clear();
			(void)ctl_fail("'%s' has not reached %s in %g s",
				       w->mnt->path, ctl_level_names[w->level],
				       w->timeout_s);
			return CTL_TIMEOUT;
		}
		draw(w, m.offset);
	}
	if (w->bar)
		ctl_bar_clear();
	return CTL_OK;
}

static int seal(const struct ctl_mount *mnt, uint64_t *seq)
{
	struct control_msg m = { .op = CONTROL_SEAL, .ino = mnt->ino };

	if (ctl_call(mnt, &m))
		return CTL_ERROR;
	if (m.err)
		return ctl_fail("'%s': %s", mnt->path, ctl_error_text(m.err));
	*seq = m.seq;
	return 0;
}

static void report(const struct ctl_args *args, const struct waiting *w,
		   int status)
{
	if (args->json)
		printf("{\"level\":\"%s\",\"reached\":%s,\"seconds\":%.3f}\n",
		       ctl_level_names[w->level],
		       status == CTL_OK ? "true" : "false",
		       now_s() - w->begin_s);
}

static int run(const struct ctl_args *args, uint32_t op)
{
	struct ctl_mount mnt;
	struct waiting w = {
		.mnt = &mnt,
		.op = op,
		.level = args->level == CTL_NO_LEVEL ? CTL_NVME : args->level,
		.begin_s = now_s(),
		.timeout_s = args->timeout_s,
		.bar = isatty(STDERR_FILENO) == 1 && !args->json,
	};
	int status = ctl_mount_open(args->path, &mnt);

	if (status)
		return status;
	if (op == CONTROL_REACHED)
		status = seal(&mnt, &w.seq);
	if (!status)
		status = wait_for(&w);
	report(args, &w, status);
	ctl_mount_close(&mnt);
	return status;
}

int ctl_wait(const struct ctl_args *args)
{
	return run(args, CONTROL_REACHED);
}

int ctl_drain(const struct ctl_args *args)
{
	return run(args, CONTROL_DRAIN);
}
