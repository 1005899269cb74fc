/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The connection to a directory. A directory does not say that its filesystem
 * has gone: an unmounted NFS leaves an empty directory behind. So a marker,
 * .ckptfs/id, is made at first use, and all work is done through descriptors
 * of the root it was found in; whenever the path stops leading there, the
 * remote is down, not empty.
 *
 * Any call may hang as long as the store does. attach and probe are made in a
 * thread of their own, which is left to itself when it takes too long; it
 * holds the remote, and while it hangs no other one is started.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

#include "engine/remote_dir.h"
#include "engine/thread.h"
#include "metadata/bytes.h"
#include "metadata/fault.h"
#include "metadata/log_message.h"

#define PATIENCE_S 5
#define MARKER REMOTE_PREFIX "/id"
#define MARKER_HEAD "ckptfs remote 1 "
#define ID_DIGITS 32
#define NO_FD (-1)

/* ---- the root --------------------------------------------------------- */

static void close_if(int fd)
{
	if (fd >= 0)
		close(fd);
}

void root_put(struct dir_root *root)
{
	if (!root || --root->refs)
		return;
	close_if(root->fd);
	close_if(root->own);
	close_if(root->staged);
	close_if(root->versions);
	close_if(root->names);
	free(root);
}

void root_putp(struct dir_root **root)
{
	root_put(*root);
}

static bool same_file(const struct stat *a, const struct stat *b)
{
	return a->st_dev == b->st_dev && a->st_ino == b->st_ino;
}

static bool root_is_there(const struct remote_dir *d,
			  const struct dir_root *root)
{
	struct stat now;

	if (stat(d->path, &now) || !same_file(&now, &root->st))
		return false;
	return !fstatat(root->own, "id", &now, AT_SYMLINK_NOFOLLOW) &&
	       same_file(&now, &root->marker);
}

static struct dir_root *root_hold(struct remote_dir *d)
{
	struct dir_root *root;

	mutex_lock(&d->lock);
	root = d->root;
	if (root)
		root->refs++;
	mutex_unlock(&d->lock);
	return root;
}

int root_get(struct remote_dir *d, struct dir_root **out)
{
	struct dir_root *root = root_hold(d);

	if (!root || !root_is_there(d, root)) {
		root_put(root);
		return -ENOTCONN;
	}
	*out = root;
	return 0;
}

/* Opens a folder of ours, made if it is missing and may be. */
static int open_folder(int at, const char *name, mode_t mode, int *fd)
{
	const int flags = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;

	*fd = openat(at, name, flags);
	if (*fd >= 0)
		return 0;
	if (errno != ENOENT || !mode)
		return -errno;
	if (mkdirat(at, name, mode) && errno != EEXIST)
		return -errno;
	*fd = openat(at, name, flags);
	return *fd < 0 ? -errno : 0;
}

int root_names(struct dir_root *root, bool make, int *fd)
{
	int fresh, none = NO_FD, err;

	*fd = root->names;
	if (*fd >= 0)
		return 0;
	err = open_folder(root->own, "names", make ? 0755 : 0, &fresh);
	if (err)
		return err;
	/* Two threads may come here at once: the first one's stays. */
	if (!atomic_compare_exchange_strong(&root->names, &none, fresh))
		close(fresh);
	*fd = root->names;
	return make ? dirty_add(root->d, root->own) : 0;
}

/* ---- the marker ------------------------------------------------------- */

static int marker_parse(const char *text, ssize_t len, char id[REMOTE_ID_ROOM])
{
	const size_t head = strlen(MARKER_HEAD);

	if (len != (ssize_t)(head + ID_DIGITS + 1) ||
	    memcmp(text, MARKER_HEAD, head))
		return -EUCLEAN;
	memcpy(id, text + head, ID_DIGITS);
	id[ID_DIGITS] = '\0';
	return strspn(id, "0123456789abcdef") == ID_DIGITS ? 0 : -EUCLEAN;
}

static int marker_read(int own, char id[REMOTE_ID_ROOM], struct stat *st)
{
	CLEANUP(close_p)
	int fd = openat(own, "id",
			O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
	char text[128];
	ssize_t n;

	if (fd < 0 || fstat(fd, st))
		return -errno;
	n = pread(fd, text, sizeof(text), 0);
	return n < 0 ? -errno : marker_parse(text, n, id);
}

static int marker_fill(int fd)
{
	char text[64];
	uint8_t random[ID_DIGITS / 2];
	size_t len = strlen(MARKER_HEAD);

	if (getrandom(random, sizeof(random), 0) != (ssize_t)sizeof(random))
		return -EIO;
	memcpy(text, MARKER_HEAD, len);
	for (size_t i = 0; i < sizeof(random); i++, len += 2)
		snprintf(text + len, 3, "%02x", random[i]);
	text[len++] = '\n';
	if (pwrite(fd, text, len, 0) != (ssize_t)len)
		return -EIO;
	return fsync(fd) ? -errno : 0;
}

/*
 * Several nodes may come first at the same time: the name appears whole, and
 * only once. Without hard links the last rename wins, and the loser notices
 * at its next call.
 */
static int marker_make(struct remote_dir *d, struct dir_root *root)
{
	char temp[64];
	int fd, err;

	temp_name(d, temp);
	fd = openat(root->staged, temp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC,
		    0644);
	if (fd < 0)
		return -errno;
	err = marker_fill(fd);
	close(fd);
	if (!err && linkat(root->staged, temp, root->own, "id", 0))
		err = errno == EEXIST ? 0 : -errno;
	if (err == -EPERM || err == -EOPNOTSUPP || err == -ENOSYS ||
	    err == -EMLINK)
		err = renameat(root->staged, temp, root->own, "id") ? -errno
								    : 0;
	(void)unlinkat(root->staged, temp, 0);
	if (!err && (fsync(root->own) || fsync(root->fd)))
		err = errno == EINVAL ? 0 : -errno;
	return err;
}

/* ---- attach ----------------------------------------------------------- */

static int open_root_dir(const struct remote_dir *d, bool known)
{
	const int flags = O_RDONLY | O_DIRECTORY | O_CLOEXEC;
	int fd = open(d->path, flags);

	if (fd < 0 && errno == ENOENT && !known && !mkdir(d->path, 0777)) {
		message_warning("%s was not there and is made: is its "
				"filesystem mounted?",
				d->remote.name);
		fd = open(d->path, flags);
	}
	return fd < 0 ? -errno : fd;
}

static int root_open(struct remote_dir *d, char id[REMOTE_ID_ROOM],
		     struct dir_root *root)
{
	const bool known = id[0];
	char found[REMOTE_ID_ROOM];
	int err;

	root->fd = open_root_dir(d, known);
	if (root->fd < 0)
		return root->fd;
	if (fstat(root->fd, &root->st))
		return -errno;
	err = open_folder(root->fd, REMOTE_PREFIX, known ? 0 : 0755,
			  &root->own);
	if (!err && known)
		err = marker_read(root->own, found, &root->marker);
	if (err)
		return err;
	err = open_folder(root->own, "staged", 0700, &root->staged);
	if (!err)
		err = open_folder(root->own, "versions", 0755, &root->versions);
	if (!err && !known) {
		err = marker_read(root->own, found, &root->marker);
		if (err == -ENOENT)
			err = marker_make(d, root);
		if (!err)
			err = marker_read(root->own, found, &root->marker);
	}
	if (err)
		return err;
	if (known && strcmp(found, id))
		return -EMEDIUMTYPE;
	memcpy(id, found, sizeof(found));
	return 0;
}

static void say_why(const struct remote_dir *d, bool known, int err, char *why,
		    size_t why_len)
{
	const char *name = d->remote.name;

	if (err == -EMEDIUMTYPE)
		snprintf(why, why_len,
			 "%s is another remote than the one this mount used: "
			 "its %s differs",
			 name, MARKER);
	else if (err == -ENOENT && known)
		snprintf(why, why_len,
			 "%s is not there, or its %s is gone: is it mounted? "
			 "(this state belongs to a remote that was published "
			 "to before; for another one give another nvme=)",
			 name, MARKER);
	else if (err == -EUCLEAN)
		snprintf(why, why_len, "%s: its %s is not a marker", name,
			 MARKER);
	else
		snprintf(why, why_len, "cannot use %s: %s", name,
			 strerror(-err));
}

static void root_replace(struct remote_dir *d, struct dir_root *fresh)
{
	struct dir_root *old;

	mutex_lock(&d->lock);
	old = d->root;
	d->root = fresh;
	mutex_unlock(&d->lock);
	root_put(old);
}

static int attach(struct remote_dir *d, char id[REMOTE_ID_ROOM], char *why,
		  size_t why_len)
{
	CLEANUP(root_putp) struct dir_root *root = root_hold(d);
	const bool known = id[0];
	int err;

	if (root && known && root_is_there(d, root))
		return 0;
	root_put(root);
	root = calloc(1, sizeof(*root));
	if (!root)
		return -ENOMEM;
	root->d = d;
	root->refs = 1;
	root->own = root->staged = root->versions = NO_FD;
	root->names = NO_FD;
	err = root_open(d, id, root);
	if (err) {
		say_why(d, known, err, why, why_len);
		/* Gone: not there. */
		return err == -ENOENT || err == -ENOTDIR || err == -EUCLEAN
			       ? -ENOTCONN
			       : err;
	}
	root_replace(d, MOVE(root));
	return 0;
}

/* Not attached yet: could it be? Changes nothing. */
static int probe_path(const struct remote_dir *d)
{
	const char *slash = strrchr(d->path, '/');
	char parent[META_PATH_MAX];
	struct stat st;

	if (!stat(d->path, &st))
		return S_ISDIR(st.st_mode) ? 0 : -ENOTDIR;
	if (errno != ENOENT)
		return -errno;
	snprintf(parent, sizeof(parent), "%.*s",
		 slash > d->path ? (int)(slash - d->path) : 1, d->path);
	return stat(parent, &st) ? -errno : 0;
}

static int probe(struct remote_dir *d, char *why, size_t why_len)
{
	CLEANUP(root_putp) struct dir_root *root = root_hold(d);
	char temp[64];
	int fd = NO_FD, err;

	if (!root) {
		err = probe_path(d);
		if (err)
			say_why(d, false, err, why, why_len);
		return err;
	}
	err = root_is_there(d, root) ? 0 : -ENOTCONN;
	if (!err) {
		temp_name(d, temp);
		fd = openat(root->staged, temp,
			    O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
		err = fd < 0 ? -errno : 0;
	}
	if (fd >= 0) {
		if (pwrite(fd, "", 1, 0) != 1)
			err = errno ? -errno : -EIO;
		close(fd);
		(void)unlinkat(root->staged, temp, 0);
	}
	if (err)
		say_why(d, true, err == -ENOTCONN ? -ENOENT : err, why,
			why_len);
	return err;
}

/* ---- calls that must come back ---------------------------------------- */

/*
 * Shared by the caller and the thread; the last one frees it. One at a time:
 * while a thread hangs there, another would only hang beside it.
 */
struct bounded {
	struct remote_dir *d; /* held */
	bool only_probe;
	bool done;     /* guarded by d->lock */
	unsigned refs; /* guarded by d->lock */
	int err;       /* the thread's, until done */
	char id[REMOTE_ID_ROOM];
	char why[256];
};

static void bounded_put(struct bounded *b)
{
	bool last;

	mutex_lock(&b->d->lock);
	last = --b->refs == 0;
	mutex_unlock(&b->d->lock);
	if (!last)
		return;
	remote_put(&b->d->remote);
	free(b);
}

/* Lets the next one come. */
static void bounded_end(struct bounded *b)
{
	mutex_lock(&b->d->lock);
	b->done = true;
	b->d->in_bounded = false;
	pthread_cond_broadcast(&b->d->bounded_over);
	mutex_unlock(&b->d->lock);
	bounded_put(b);
}

static void *bounded_main(void *arg)
{
	struct bounded *b = arg;

	if (b->only_probe)
		b->err = probe(b->d, b->why, sizeof(b->why));
	else
		b->err = attach(b->d, b->id, b->why, sizeof(b->why));
	bounded_end(b);
	return NULL;
}

static bool wait_over_locked(struct remote_dir *d, const bool *over, bool want,
			     const struct timespec *until) MUST_HOLD(d->lock);
static bool wait_over_locked(struct remote_dir *d, const bool *over, bool want,
			     const struct timespec *until)
{
	int rc = 0;

	while (*over != want && rc != ETIMEDOUT)
		rc = pthread_cond_timedwait(&d->bounded_over, &d->lock.m,
					    until);
	return *over == want;
}

/* Waits for its turn. The thread holds one reference, the caller the other. */
static int bounded_start(struct bounded *b, const struct timespec *until)
{
	struct remote_dir *d = b->d;
	pthread_t thread;
	bool mine;
	int err;

	mutex_lock(&d->lock);
	mine = wait_over_locked(d, &d->in_bounded, false, until);
	if (mine)
		d->in_bounded = true;
	b->refs += mine;
	mutex_unlock(&d->lock);
	if (!mine)
		return -ETIMEDOUT;
	err = thread_start(&thread, "remote-attach", bounded_main, b);
	if (err)
		bounded_end(b);
	else
		pthread_detach(thread);
	return err;
}

static int bounded_finish(struct bounded *b, const struct timespec *until)
{
	bool done;

	mutex_lock(&b->d->lock);
	done = wait_over_locked(b->d, &b->done, true, until);
	mutex_unlock(&b->d->lock);
	return done ? b->err : -ETIMEDOUT;
}

static int bounded_call(struct remote *r, bool only_probe,
			char id[REMOTE_ID_ROOM], char *why, size_t why_len)
{
	struct bounded *b = calloc(1, sizeof(*b));
	struct timespec until;
	int err;

	if (!b)
		return -ENOMEM;
	b->d = remote_dir(remote_hold(r));
	b->only_probe = only_probe;
	b->refs = 1;
	if (id)
		memcpy(b->id, id, sizeof(b->id));
	clock_gettime(CLOCK_MONOTONIC, &until);
	until.tv_sec += PATIENCE_S;
	err = bounded_start(b, &until);
	if (!err)
		err = bounded_finish(b, &until);
	if (err == -ETIMEDOUT)
		snprintf(why, why_len, "%s does not answer", r->name);
	else if (err)
		snprintf(why, why_len, "%s",
			 b->why[0] ? b->why : strerror(-err));
	else if (id)
		memcpy(id, b->id, sizeof(b->id));
	bounded_put(b);
	return err;
}

int dir_attach(struct remote *r, char id[REMOTE_ID_ROOM], char *why,
	       size_t why_len)
{
	return bounded_call(r, false, id, why, why_len);
}

int dir_probe(struct remote *r, char *why, size_t why_len)
{
	return bounded_call(r, true, NULL, why, why_len);
}

/* ---- what must be fsynced --------------------------------------------- */

/* Some filesystems cannot fsync a directory: then it needs none. */
static int fsync_any(int fd)
{
	if (!fsync(fd) || errno == EINVAL || errno == ENOSYS ||
	    errno == EOPNOTSUPP || errno == EBADF)
		return 0;
	return -errno;
}

static unsigned dirty_take(struct remote_dir *d, struct dirty out[N_DIRTY])
{
	unsigned n;

	mutex_lock(&d->lock);
	n = d->n_dirty;
	memcpy(out, d->dirty, n * sizeof(*out));
	d->n_dirty = 0;
	mutex_unlock(&d->lock);
	return n;
}

/*
 * What is not in the set. The folders by themselves, too: syncfs() does not
 * reach a filesystem whose server is a process (FUSE).
 */
static int sync_all(struct remote_dir *d)
{
	CLEANUP(root_putp) struct dir_root *root = NULL;
	int err = root_get(d, &root);

	if (err)
		return err;
	if (syncfs(root->fd))
		return -errno;
	err = fsync_any(root->versions);
	if (!err && root->names >= 0)
		err = fsync_any(root->names);
	if (!err)
		err = fsync_any(root->own);
	return err ? err : fsync_any(root->fd);
}

/*
 * On an error the set is empty all the same: fsync tells of one failure once,
 * so trying again would prove nothing. The caller must ask for all then.
 */
int dir_sync(struct remote *r, bool all)
{
	struct remote_dir *d = remote_dir(r);
	struct dirty set[N_DIRTY];
	unsigned n = dirty_take(d, set);
	const int fault = FAULT("remote.sync", -EIO);
	int err = fault;

	for (unsigned i = 0; i < n; i++) {
		int e = fault ? fault : fsync_any(set[i].fd);

		err = err ? err : e;
		close(set[i].fd);
	}
	return err || !all ? err : sync_all(d);
}

/* true: x is in the set, which owns its descriptor then. */
static bool dirty_insert_locked(struct remote_dir *d, const struct dirty *x)
	MUST_HOLD(d->lock);
static bool dirty_insert_locked(struct remote_dir *d, const struct dirty *x)
{
	if (d->n_dirty == N_DIRTY)
		return false;
	d->dirty[d->n_dirty++] = *x;
	return true;
}

static bool dirty_has(struct remote_dir *d, const struct stat *st)
{
	bool found = false;

	mutex_lock(&d->lock);
	for (unsigned i = 0; i < d->n_dirty; i++)
		found |= d->dirty[i].dev == st->st_dev &&
			 d->dirty[i].ino == st->st_ino;
	mutex_unlock(&d->lock);
	return found;
}

int dirty_add(struct remote_dir *d, int fd)
{
	struct dirty x;
	struct stat st;
	bool kept = false;
	int err;

	if (fstat(fd, &st))
		return -errno;
	if (dirty_has(d, &st))
		return 0;
	x = (struct dirty){ st.st_dev, st.st_ino,
			    fcntl(fd, F_DUPFD_CLOEXEC, 0) };
	if (x.fd >= 0) {
		mutex_lock(&d->lock);
		kept = dirty_insert_locked(d, &x);
		mutex_unlock(&d->lock);
	}
	if (kept)
		return 0;
	err = fsync_any(fd);
	close_if(x.fd);
	return err;
}

/* ---- the end ---------------------------------------------------------- */

void temp_name(struct remote_dir *d, char out[64])
{
	struct timespec now;

	clock_gettime(CLOCK_REALTIME, &now);
	snprintf(out, 64, "tmp-%llx-%lx-%x-%llx",
		 (unsigned long long)now.tv_sec, now.tv_nsec,
		 (unsigned)getpid(), (unsigned long long)d->n_temp++);
}

void dir_close(struct remote *r)
{
	struct remote_dir *d = remote_dir(r);
	struct dirty set[N_DIRTY];
	struct staged *s;
	unsigned n = dirty_take(d, set);

	for (unsigned i = 0; i < n; i++)
		close(set[i].fd);
	while ((s = LIST_FIRST(&d->staged))) {
		LIST_REMOVE(s, next);
		free(s);
	}
	root_put(d->root);
	pthread_cond_destroy(&d->bounded_over);
	mutex_fini(&d->lock);
	free(d->remote.name);
	free(d->path);
	free(d);
}
