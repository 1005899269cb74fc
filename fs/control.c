/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Answers ckptctl. No answer comes from the thread that read the request, as
 * it may walk a tree or seal: each one gets a thread, and where there are too
 * many the asker is told to come again. Whoever waits needs none meanwhile: any
 * number may.
 */
#include <errno.h>
#include <string.h>

#include "fs/capture.h"
#include "fs/control.h"
#include "fs/control_serve.h"
#include "fs/hidden.h"
#include "fs/options.h"

#define MAX_JOBS 16
#define WAIT_MS 100

struct control {
	struct mutex lock;
	pthread_cond_t idle;
	unsigned n_jobs; /* guarded by lock */
};

struct job {
	fuse_req_t req;
	struct fs *fs;
	struct control_msg msg;
};

int control_start(struct fs *fs, struct control **out)
{
	struct control *c = calloc(1, sizeof(*c));

	(void)fs;
	if (!c)
		return -ENOMEM;
	mutex_init(&c->lock);
	pthread_cond_init(&c->idle, NULL);
	*out = c;
	return 0;
}

void control_stop(struct control *c)
{
	if (!c)
		return;
	mutex_lock(&c->lock);
	while (c->n_jobs)
		pthread_cond_wait(&c->idle, &c->lock.m);
	mutex_unlock(&c->lock);
	pthread_cond_destroy(&c->idle);
	mutex_fini(&c->lock);
	free(c);
}

/* ---- operations: each returns what becomes msg->err ------------------- */

/* Takes text. */
static int put_text(struct control_msg *m, char *text)
{
	size_t len = strlen(text), from = len;

	if (m->offset < len)
		from = (size_t)m->offset;
	m->total = len;
	m->len = len - from < CONTROL_TEXT_LEN ? (uint32_t)(len - from)
					       : CONTROL_TEXT_LEN;
	memcpy(m->text, text + from, m->len);
	free(text);
	return 0;
}

static int do_status(struct fs *fs, struct control_msg *m)
{
	char *text;
	int err = status_json(fs, &text);

	return err ? err : put_text(m, text);
}

static int do_path_state(struct fs *fs, struct control_msg *m)
{
	char *text;
	int err = path_json(fs, m->ino, &text);

	return err ? err : put_text(m, text);
}

static int do_seal(struct fs *fs, struct control_msg *m)
{
	return engine_seal_tree(fs->engine, m->ino, &m->seq);
}

/* For a progress bar: what is still on its way. */
static void put_behind(struct fs *fs, struct control_msg *m, enum level level)
{
	struct engine_status st;

	engine_status(fs->engine, &st);
	m->offset = st.tier[level].behind_bytes;
}

/* Is it answered when seq is reached, or a moment later? */
static bool waits(const struct control_msg *m)
{
	return m->op == CONTROL_DRAIN ||
	       (m->op == CONTROL_REACHED && m->arg & CONTROL_WAIT);
}

static int do_reached(struct fs *fs, struct control_msg *m)
{
	enum level level = (enum level)CONTROL_LEVEL(m->arg);
	bool reached = false;
	int err = 0;

	put_behind(fs, m, level);
	if (waits(m))
		return 0;
	err = engine_reached(fs->engine, m->seq, level, &reached);
	m->arg = reached;
	return err;
}

static int do_evict(struct fs *fs, struct control_msg *m)
{
	enum level level = (enum level)CONTROL_LEVEL(m->arg);

	return engine_evict(fs->engine, m->ino ? m->ino : META_ROOT_INO, level,
			    &m->total, &m->arg);
}

static int do_drain(struct fs *fs, struct control_msg *m)
{
	enum level level = (enum level)CONTROL_LEVEL(m->arg);
	int err = engine_seal_all(fs->engine, &m->seq);

	put_behind(fs, m, level);
	return err;
}

static const struct {
	int (*run)(struct fs *fs, struct control_msg *m);
	bool changes; /* for the owner and root */
	bool has_level;
} ops[] = {
	[CONTROL_STATUS] = { .run = do_status },
	[CONTROL_PATH_STATE] = { .run = do_path_state },
	[CONTROL_SEAL] = { .run = do_seal },
	[CONTROL_REACHED] = { .run = do_reached, .has_level = true },
	[CONTROL_EVICT] = { .run = do_evict,
			    .changes = true,
			    .has_level = true },
	[CONTROL_DRAIN] = { .run = do_drain,
			    .changes = true,
			    .has_level = true },
};

#define N_OPS (sizeof(ops) / sizeof(ops[0]))

static int is_in(void *arg, uint64_t parent, const char *name)
{
	(void)name;
	return parent == *(const uint64_t *)arg;
}

/*
 * Inode numbers can be guessed: only of what lies in a directory that the asker
 * has opened is anything told, and of other directories nothing.
 */
static int may_ask(const struct fs *fs, uint64_t dir, uint64_t ino)
{
	struct inode_rec rec;
	int r;

	if (!ino || ino == dir)
		return 0;
	r = view_inode(fs->view, ino, &rec);
	if (!r && !S_ISDIR(rec.mode))
		r = view_names(fs->view, ino, is_in, &dir);
	return r < 0 ? r : r ? 0 : -ENOENT;
}

static int check(const struct fs *fs, const struct control_msg *m, uint64_t dir,
		 uid_t uid)
{
	if (m->version != CONTROL_VERSION)
		return -EPROTO;
	if (m->op >= N_OPS || !ops[m->op].run)
		return -EOPNOTSUPP;
	if (ops[m->op].changes && uid != 0 && uid != fs->owner)
		return -EPERM;
	if (ops[m->op].has_level && CONTROL_LEVEL(m->arg) > LEVEL_REMOTE)
		return -EINVAL;
	if (ops[m->op].has_level && CONTROL_LEVEL(m->arg) == LEVEL_REMOTE &&
	    !fs->options->remote)
		return -ENODEV;
	if (ino_is_hidden(m->ino) && m->ino)
		return -ENOENT;
	return may_ask(fs, dir, m->ino);
}

/* ---- jobs ------------------------------------------------------------- */

static void answer(struct job *job, int err)
{
	job->msg.err = err;
	fuse_reply_ioctl(job->req, 0, &job->msg, sizeof(job->msg));
	free(job);
}

static bool job_enter(struct control *c)
{
	bool room;

	mutex_lock(&c->lock);
	room = c->n_jobs < MAX_JOBS;
	c->n_jobs += room;
	mutex_unlock(&c->lock);
	return room;
}

void control_job_end(struct control *c)
{
	mutex_lock(&c->lock);
	if (!--c->n_jobs)
		pthread_cond_broadcast(&c->idle);
	mutex_unlock(&c->lock);
}

static void wait_done(void *arg, int err)
{
	struct job *job = arg;

	job->msg.arg = !err;
	answer(job, err == -ETIMEDOUT ? 0 : err);
}

static void *job_main(void *arg)
{
	struct job *job = arg;
	struct control_msg *m = &job->msg;
	struct fs *fs = job->fs;
	int err;

	m->len = 0;
	err = ops[m->op].run(fs, m);
	if (!err && waits(m))
		engine_when_reached(fs->engine, m->seq,
				    (enum level)CONTROL_LEVEL(m->arg), WAIT_MS,
				    wait_done, job);
	else
		answer(job, err);
	control_job_end(fs->control);
	return NULL;
}

static int start_detached(void *(*fn)(void *), void *arg)
{
	pthread_attr_t attr;
	pthread_t thread;
	int err;

	pthread_attr_init(&attr);
	pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
	err = pthread_create(&thread, &attr, fn, arg);
	pthread_attr_destroy(&attr);
	return -err;
}

int control_job_start(struct control *c, void *(*run)(void *arg), void *arg)
{
	int err;

	if (!job_enter(c))
		return -EAGAIN;
	err = start_detached(run, arg);
	if (err)
		control_job_end(c);
	return err;
}

/* dir: on which the ioctl is done. */
static void start_job(struct job *job, uint64_t dir)
{
	struct control_msg *m = &job->msg;
	int err = check(job->fs, m, dir, fuse_req_ctx(job->req)->uid);

	if (m->op == CONTROL_PATH_STATE && !m->ino)
		m->ino = dir;

	if (!err)
		err = control_job_start(job->fs->control, job_main, job);
	if (err)
		answer(job, err);
}

void op_ioctl(fuse_req_t req, fuse_ino_t ino, unsigned int cmd, void *arg,
	      struct fuse_file_info *fi, unsigned flags, const void *in_buf,
	      size_t in_bufsz, size_t out_bufsz)
{
	struct job *job;

	(void)arg;
	if (capture_ioctl(req, ino, flags & FUSE_IOCTL_DIR ? 0 : fi->fh, cmd,
			  in_buf, in_bufsz))
		return;
	if (cmd != CONTROL_IOCTL || !(flags & FUSE_IOCTL_DIR)) {
		reply_result(req, -ENOTTY);
		return;
	}
	if (in_bufsz != sizeof(job->msg) || out_bufsz < sizeof(job->msg)) {
		reply_result(req, -EINVAL);
		return;
	}
	job = malloc(sizeof(*job));
	if (!job) {
		reply_result(req, -ENOMEM);
		return;
	}
	job->req = req;
	job->fs = fs_of(req);
	memcpy(&job->msg, in_buf, sizeof(job->msg));
	start_job(job, ino);
}
