/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The remote at the start: is it there and ours, and whose files count if both
 * have some?
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "engine/core.h"
#include "engine/start.h"
#include "metadata/log_message.h"

#define NOTE_JOINED "remote.joined" /* 1: its files and ours are one tree */

int start_remote(struct start *s)
{
	struct engine *e = s->e;
	char why[200] = "";
	int r = restore_recall(e->meta, e->opened.start == META_POWER_CUT);

	if (r < 0)
		return start_fail(s, r, "cannot note what was taken over: %s",
				  strerror(-r));
	if (!e->config.remote)
		return 0;
	r = remote_open(e->config.remote, &e->remote);
	if (r < 0)
		return start_fail(s, r, "remote=%s: %s", e->config.remote,
				  r == -EOPNOTSUPP ? "not in this build"
						   : strerror(-r));
	r = remote_attach(e->meta, e->remote, why, sizeof(why));
	if (r == 0)
		r = e->remote->ops->probe(e->remote, why, sizeof(why));
	/* Down is no reason not to mount; a mistake is. */
	if (r < 0 && (e->opened.start == META_FRESH ||
		      !restore_is_done(e->meta) || r == -EMEDIUMTYPE))
		return start_fail(s, r, "remote=%s cannot be used: %s",
				  e->config.remote,
				  why[0] ? why : strerror(-r));
	if (r < 0)
		message_warning("remote %s is down (%s): mounted on local "
				"state alone, will go on trying",
				e->config.remote, why[0] ? why : strerror(-r));
	return fetcher_new(e->meta, e->remote, &e->fetcher);
}

static int any_entry(void *arg, const char *name, const struct dentry_rec *d)
{
	(void)name;
	(void)d;
	*(bool *)arg = true;
	return 1;
}

static int any_name(void *arg, const char *name)
{
	(void)name;
	*(bool *)arg = true;
	return 1;
}

/*
 * Which of two files of one name would be the right one? Asked once: an import
 * that was interrupted, or is made once more, finds its own files here.
 */
static int check_merge(struct start *s)
{
	struct engine *e = s->e;
	bool here = false, there = false;
	uint8_t joined;
	size_t len = sizeof(joined);
	int r;

	if (!meta_note(e->meta, NOTE_JOINED, &joined, &len) && len)
		return 0;
	r = view_readdir(meta_accepted(e->meta), META_ROOT_INO, 0, any_entry,
			 &here);
	if (r >= 0 && here)
		r = e->remote->ops->list(e->remote, "", any_name, &there);
	if (r < 0)
		return start_fail(s, r, "cannot read what remote=%s holds: %s",
				  e->config.remote, strerror(-r));
	if (!here || !there)
		return meta_set_note(e->meta, NOTE_JOINED, "\1", 1);
	(void)!remote_forget(e->meta);
	return start_fail(
		s, -EEXIST,
		"remote=%s holds files already, and so does nvme=%s: give "
		"one of them an empty directory",
		e->config.remote, e->nvme_dir);
}

int start_import(struct start *s)
{
	struct engine *e = s->e;
	char why[200] = "";
	uint64_t n = 0;
	int r;

	if (!e->remote || restore_is_done(e->meta))
		return 0;
	r = check_merge(s);
	if (r < 0)
		return r;
	r = restore_import(e->meta, e->remote, &n, why, sizeof(why));
	if (r < 0)
		return start_fail(s, r, "cannot read what remote=%s holds: %s",
				  e->config.remote,
				  why[0] ? why : strerror(-r));
	if (n)
		message_info("%lu files found on %s", (unsigned long)n,
			     e->config.remote);
	return 0;
}
