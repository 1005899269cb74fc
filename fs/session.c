/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A mount from start to end. The engine starts first: what is wrong with
 * tiers and remotes is told while nothing is mounted. It stops last: when the
 * kernel has let go of us, what it was given still goes to NVMe, and replies
 * to requests that waited for that must find the session alive.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/utsname.h>

#include "fs/capture.h"
#include "fs/control_serve.h"
#include "fs/errand.h"
#include "fs/mountpoint.h"
#include "fs/passthrough.h"
#include "fs/session.h"
#include "fs/tensor_tree.h"
#include "metadata/log_message.h"

#define LINE_LEN 512

/* ---- passthrough or not ----------------------------------------------- */

static void why_kernel_cannot(char *note, size_t len)
{
	struct utsname u;
	unsigned major = 0, minor = 0;

	uname(&u);
	if (sscanf(u.release, "%u.%u", &major, &minor) == 2 &&
	    (major < 6 || (major == 6 && minor < 9)))
		snprintf(note, len, "kernel %u.%u < 6.9", major, minor);
	else
		snprintf(note, len,
			 "this kernel has no CONFIG_FUSE_PASSTHROUGH");
}

/* Why files must be served, in note; 0: they pass through. */
static int try_passthrough(const struct session *s, char *note, size_t len)
{
	const char *missing = passthrough_missing();
	int err;

	if (s->options->io == IO_SERVED) {
		snprintf(note, len, "io=served was asked for");
		return -EOPNOTSUPP;
	}
	if (missing) {
		snprintf(note, len, "%s", missing);
		return -EOPNOTSUPP;
	}
	if (!s->fs.kernel_passes) {
		why_kernel_cannot(note, len);
		return -EOPNOTSUPP;
	}
	err = passthrough_try(s->dev_fd);
	if (err == -EPERM)
		snprintf(note, len, "not root (no CAP_SYS_ADMIN)");
	else if (err)
		snprintf(note, len, "the kernel refuses: %s", strerror(-err));
	return err;
}

static int choose_io(struct session *s)
{
	struct backing_hooks hooks;
	char note[120], line[160];

	if (!try_passthrough(s, note, sizeof(note))) {
		passthrough_hooks(&s->dev_fd, &hooks);
		engine_use_passthrough(s->fs.engine, &hooks);
		engine_set_io_note(s->fs.engine, "passthrough");
		return 0;
	}
	if (s->options->io == IO_PASSTHROUGH) {
		message_error("io=passthrough cannot be had: %s; give io=auto "
			      "to serve files instead",
			      note);
		return -EOPNOTSUPP;
	}
	snprintf(line, sizeof(line), "served: %s", note);
	engine_set_io_note(s->fs.engine, line);
	return 0;
}

/* ---- start ------------------------------------------------------------ */

static int start_engine(struct session *s)
{
	const struct options *o = s->options;
	struct engine_config config = {
		.nvme_dir = o->nvme,
		.mountpoint = o->mountpoint,
		.dram = o->dram,
		.reserve = o->reserve,
		.nvme_size = o->nvme_size,
		.fsync = o->fsync,
		.flush_rate = o->flush_rate,
		.remote = o->remote,
		.faulty = o->faulty,
		.unwanted = startup_unwanted,
		.unwanted_arg = s->startup,
	};
	char why[LINE_LEN] = "";
	int err = engine_start(&config, why, sizeof(why), &s->fs.engine);

	if (err)
		message_error("%s", why[0] ? why : strerror(-err));
	return err;
}

static void fill_fs(struct session *s)
{
	struct fs *fs = &s->fs;

	fs->meta = engine_meta(fs->engine);
	fs->view = meta_accepted(fs->meta);
	fs->options = s->options;
	fs->owner = geteuid();
	fs->group = getegid();
	fs->started_ns = fs_now_ns();
	fs->want_passthrough = s->options->io != IO_SERVED &&
			       !passthrough_missing();
}

static int mount_session(struct session *s)
{
	char why[LINE_LEN];
	int err = libfuse_mount(s, why, sizeof(why));

	if (err) {
		message_error("%s", why);
		return err;
	}
	s->fs.session = s->fuse;
	err = libfuse_handshake(s);
	if (err) {
		message_error("the kernel did not agree to mount '%s': %s",
			      s->options->mountpoint, strerror(-err));
		return err;
	}
	return choose_io(s);
}

/* Before the mount, as all that follows a path of the user's: from then on
 * until we serve, one that leads into the mount waits for us. */
static int open_log(struct session *s)
{
	const char *path = s->options->log;
	int err = path ? message_open_file(path, &s->log_fd) : 0;

	if (err)
		message_error("log=%s cannot be written: %s; name a file that "
			      "can",
			      path, strerror(-err));
	return err;
}

/* Nothing can fail any more. Until now the caller read warnings only; the log
 * gets more. */
static void use_log(const struct session *s)
{
	if (!s->options->debug)
		message_set_level(MESSAGE_INFO);
	if (s->log_fd >= 0)
		message_to_fd(s->log_fd);
	else if (!s->options->foreground)
		message_to_syslog("ckptfs");
}

static int serve(struct session *s)
{
	struct engine_status st;
	int err = signals_start(s);

	if (err) {
		message_error("cannot start the signal thread: %s",
			      strerror(-err));
		return err;
	}
	use_log(s);
	engine_status(s->fs.engine, &st);
	message_info("mounted '%s' on '%s': %s; state in '%s': %s",
		     s->options->shown_source, s->options->mountpoint,
		     st.io_note, s->options->nvme, st.start);
	startup_done(s->startup);
	err = libfuse_loop(s);
	if (err)
		message_error("lost the kernel's requests: %s", strerror(-err));
	signals_stop(s);
	return 0;
}

/* ---- end -------------------------------------------------------------- */

static void leave_nothing(const struct session *s)
{
	const char *path = s->options->mountpoint;
	int err = mountpoint_unmount(path, &s->own, true);

	if (err && err != -ENOENT)
		message_error("'%s' is left behind: run 'umount -l %s'", path,
			      path);
}

/*
 * libfuse's own unmount closes the descriptor while callbacks of the engine
 * may still write replies to it; so unmount, then stop, then destroy.
 */
static void end(struct session *s)
{
	if (s->is_mounted)
		leave_nothing(s);
	engine_end_fetches(s->fs.engine);
	errands_free(s->fs.errands);
	control_stop(s->fs.control);
	expected_free(s->fs.expected);
	tensor_tree_free(s->fs.tensors);
	engine_stop(s->fs.engine, -1);
	if (s->fuse)
		fuse_session_destroy(s->fuse);
}

int session_run(const struct options *o, struct startup *startup)
{
	struct session s = {
		.options = o, .startup = startup, .dev_fd = -1, .log_fd = -1
	};
	int err;

	libfuse_messages();
	err = start_engine(&s);
	if (err)
		return err;
	fill_fs(&s);
	err = control_start(&s.fs, &s.fs.control);
	if (!err)
		err = expected_new(&s.fs.expected);
	if (!err)
		err = errands_new(&s.fs.errands);
	if (!err)
		err = tensor_tree_new(&s.fs, &s.fs.tensors);
	if (!err)
		err = open_log(&s);
	if (!err)
		err = mount_session(&s);
	if (!err)
		err = serve(&s);
	end(&s);
	return err;
}
