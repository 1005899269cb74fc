/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The session as libfuse knows it.
 *
 * INIT is answered here, before the loop and by one thread: what the kernel
 * then offers can be tried out before the first real request is read.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sysinfo.h>

#include "fs/mountpoint.h"
#include "fs/session.h"
#include "metadata/log_message.h"

/* fsync is answered by callbacks, what the remote must give by errands; threads
 * are for opens that must wait for a flush. */
#define MAX_THREADS 256
#define IDLE_MIN 4u
#define IDLE_MOST 16u

/* ---- messages --------------------------------------------------------- */

/* Written while one thread runs; libfuse's hook takes no argument. */
static char last_message[256];

PRINTF(2, 0)
static void take_message(enum fuse_log_level level, const char *fmt,
			 va_list args)
{
	char line[sizeof(last_message)];

	vsnprintf(line, sizeof(line), fmt, args);
	line[strcspn(line, "\n")] = '\0';
	if (level == FUSE_LOG_DEBUG)
		message_debug("%s", line);
	else
		message_info("libfuse: %s", line);
}

PRINTF(2, 0)
static void keep_message(enum fuse_log_level level, const char *fmt,
			 va_list args)
{
	if (level == FUSE_LOG_DEBUG)
		return;
	vsnprintf(last_message, sizeof(last_message), fmt, args);
	last_message[strcspn(last_message, "\n")] = '\0';
}

void libfuse_messages(void)
{
	fuse_set_log_func(keep_message);
}

const char *libfuse_last_message(void)
{
	return last_message[0] ? last_message : "it does not say why";
}

/* ---- mounting --------------------------------------------------------- */

/* libfuse splits at commas too. */
static void put_escaped(FILE *f, const char *s)
{
	for (; *s; s++) {
		if (*s == ',' || *s == '\\')
			fputc('\\', f);
		fputc(*s, f);
	}
}

static char *mount_options(const struct options *o)
{
	char *text = NULL;
	size_t len;
	FILE *f = open_memstream(&text, &len);

	if (!f)
		return NULL;
	fputs("default_permissions,subtype=ckptfs,fsname=", f);
	put_escaped(f, o->shown_source);
	if (o->allow_other)
		fputs(",allow_other", f);
	if (o->kernel)
		fprintf(f, ",%s", o->kernel);
	if (fclose(f)) {
		free(text);
		return NULL;
	}
	return text;
}

static struct fuse_session *new_session(struct session *s)
{
	CLEANUP(free_p) char *opts = mount_options(s->options);
	struct fuse_args args = FUSE_ARGS_INIT(0, NULL);
	struct fuse_session *se = NULL;

	if (opts && !fuse_opt_add_arg(&args, "ckptfs") &&
	    !fuse_opt_add_arg(&args, "-o") && !fuse_opt_add_arg(&args, opts) &&
	    (!s->options->debug || !fuse_opt_add_arg(&args, "-d")))
		se = fuse_session_new(&args, &fs_ops, sizeof(fs_ops), &s->fs);
	fuse_opt_free_args(&args);
	return se;
}

/*
 * fusermount3 writes to stderr what it finds wrong. That must become part of
 * our one line, so stderr goes into a file meanwhile.
 */
static int catch_stderr(int *saved)
{
	int fd = memfd_create("stderr", MFD_CLOEXEC);

	*saved = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 3);
	if (fd >= 0)
		dup2(fd, STDERR_FILENO);
	return fd;
}

/* Takes both descriptors. What was caught is the message if it is an error,
 * else it goes where it wanted to. */
static void release_stderr(int fd, int saved, bool failed)
{
	char text[sizeof(last_message)];
	ssize_t n = fd < 0 ? 0 : pread(fd, text, sizeof(text) - 1, 0);

	if (saved >= 0) {
		dup2(saved, STDERR_FILENO);
		close(saved);
	}
	if (fd >= 0)
		close(fd);
	if (n <= 0)
		return;
	if (!failed) {
		n = write(STDERR_FILENO, text, (size_t)n);
		return;
	}
	text[n] = '\0';
	text[strcspn(text, "\n")] = '\0';
	memcpy(last_message, text, sizeof(text));
}

static int mount_quietly(struct fuse_session *fuse, const char *path)
{
	int saved, fd = catch_stderr(&saved);
	int res = fuse_session_mount(fuse, path);

	release_stderr(fd, saved, res != 0);
	return res;
}

int libfuse_mount(struct session *s, char *why, size_t why_len)
{
	const char *path = s->options->mountpoint;

	s->fuse = new_session(s);
	if (!s->fuse) {
		snprintf(why, why_len, "cannot make a FUSE session: %s",
			 libfuse_last_message());
		return -EINVAL;
	}
	if (mount_quietly(s->fuse, path)) {
		snprintf(why, why_len, "cannot mount on '%s': %s", path,
			 libfuse_last_message());
		fuse_session_destroy(s->fuse);
		s->fuse = NULL;
		return -EIO;
	}
	s->dev_fd = fuse_session_fd(s->fuse);
	s->is_mounted = true;
	/* One that cannot be told from others is not unmounted. */
	(void)!mountpoint_find(path, &s->own);
	return 0;
}

/* ---- serving ---------------------------------------------------------- */

int libfuse_handshake(struct session *s)
{
	struct fuse_buf buf = { 0 };
	int err = 0;

	while (!err && !s->fs.initialised) {
		int n = fuse_session_receive_buf(s->fuse, &buf);

		if (n > 0)
			fuse_session_process_buf(s->fuse, &buf);
		else if (n != -EINTR)
			err = n ? n : -ENODEV;
		if (!err && fuse_session_exited(s->fuse))
			err = -EPROTO;
	}
	free(buf.mem);
	return err;
}

/* A request wakes whoever has waited longest: of many threads that is one whose
 * stack is in no cache, on another CPU. */
static unsigned idle_threads(void)
{
	unsigned n = 2 * (unsigned)get_nprocs();

	if (n > IDLE_MOST)
		return IDLE_MOST;
	return n > IDLE_MIN ? n : IDLE_MIN;
}

int libfuse_loop(struct session *s)
{
	struct fuse_loop_config *config = fuse_loop_cfg_create();
	int res;

	if (!config)
		return -ENOMEM;
	fuse_set_log_func(take_message);
	fuse_loop_cfg_set_max_threads(config, MAX_THREADS);
	fuse_loop_cfg_set_idle_threads(config, idle_threads());
	fuse_loop_cfg_set_clone_fd(config, 0);
	res = fuse_session_loop_mt(s->fuse, config);
	fuse_loop_cfg_destroy(config);
	return res < 0 ? res : 0;
}
