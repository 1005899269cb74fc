/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where the DRAM tier lies: two tmpfs under /run/ckptfs/NAME if we may mount,
 * else two directories under /dev/shm/ckptfs-UID-NAME. Both outlive the
 * daemon, so beside them stands a file `owner`, on which a daemon holds a lock
 * as long as it lives: it is how a later daemon, or ckptctl, tells what is in
 * use from what a killed one left. (A pid in it would mean nothing to whoever
 * lives in another pid namespace and sees the same /run.)
 *
 * owner, text: "nvme " and the path. Those of dead daemons of older versions
 * have other lines too.
 *
 * In /dev/shm anybody may make what looks like a place: nothing in it is looked
 * at before it is known to be ours.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <inttypes.h>
#include <limits.h>
#include <linux/magic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>

#include "engine/reserve.h"
#include "engine/spare.h"
#include "metadata/log_message.h"

#define RUN_DIR "/run/ckptfs"
#define SHM_DIR "/dev/shm"
#define SHM_PREFIX "ckptfs-"
#define MIB (UINT64_C(1) << 20)
#define GIB (UINT64_C(1) << 30)
#define MOUNT_FLAGS (MS_NOSUID | MS_NODEV)
#define FIRST_USER_UID 1000

/*
 * How far the tmpfs may go above the limit. It takes no memory unless it is
 * used, and being short of it is ENOSPC in the middle of someone's save: a
 * single write call carries up to 2 GiB, and a passthrough writer is looked
 * at only now and then. So room for one such call, or an eighth of a small
 * machine if that is less; for large tiers with many writers a sixteenth.
 */
static uint64_t headroom(uint64_t limit)
{
	uint64_t one_call = 2 * GIB + 64 * MIB;
	uint64_t share = spare_total() / 8;
	uint64_t room = one_call < share ? one_call : share;

	if (room < limit / 16)
		room = limit / 16;
	return room < 64 * MIB ? 64 * MIB : room;
}

/* ---- the owner file ---- */

static int own_place(const char *base)
{
	struct stat st;

	if (lstat(base, &st))
		return -errno;
	if (!S_ISDIR(st.st_mode))
		return -EINVAL;
	return st.st_uid == geteuid() ? 0 : -EPERM;
}

/* A descriptor, or -errno. */
static int owner_open(const char *base, int flags)
{
	char path[300];
	struct stat st;
	int fd = own_place(base);

	if (fd)
		return fd;
	snprintf(path, sizeof(path), "%s/owner", base);
	fd = open(path, flags | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
	if (fd < 0)
		return -errno;
	if (fstat(fd, &st) || !S_ISREG(st.st_mode)) {
		close(fd);
		return -EINVAL;
	}
	return fd;
}

/* Of whichever daemon, dead or alive. */
static bool has_owner(const char *base)
{
	int fd = owner_open(base, O_RDONLY);

	if (fd >= 0)
		close(fd);
	return fd >= 0;
}

static bool owner_lives(int fd)
{
	struct flock lock = { .l_type = F_WRLCK };

	return !fcntl(fd, F_OFD_GETLK, &lock) && lock.l_type != F_UNLCK;
}

/* As long as fd is open, in any process, the owner lives. */
static int owner_become(int fd)
{
	struct flock lock = { .l_type = F_WRLCK };

	if (!fcntl(fd, F_OFD_SETLK, &lock))
		return 0;
	return errno == EAGAIN || errno == EACCES ? -EBUSY : -errno;
}

static int owner_write(const char *base, const char *nvme_dir, int *out)
{
	int fd = owner_open(base, O_RDWR | O_CREAT);
	int rc = fd < 0 ? fd : owner_become(fd);

	if (!rc && (ftruncate(fd, 0) || dprintf(fd, "nvme %s\n", nvme_dir) < 0))
		rc = -errno;
	if (!rc)
		*out = fd;
	else if (fd >= 0)
		close(fd);
	return rc;
}

/* What its daemon's nvme= was; "": that is not known. */
static void owner_nvme(int fd, char *nvme, size_t len)
{
	char text[4400] = "", *line, *next = text;

	nvme[0] = '\0';
	if (pread(fd, text, sizeof(text) - 1, 0) < 0)
		return;
	while ((line = strsep(&next, "\n")))
		if (!strncmp(line, "nvme ", 5))
			snprintf(nvme, len, "%s", line + 5);
}

/* ---- directories and mounts ---- */

static int own_dir(const char *path)
{
	int rc;

	if (mkdir(path, 0700) && errno != EEXIST)
		return -errno;
	rc = own_place(path);
	if (!rc && chmod(path, 0700))
		rc = -errno;
	return rc;
}

static bool is_tmpfs_mount(const char *dir)
{
	char parent[300];
	struct statfs fs;
	struct stat st, up;

	snprintf(parent, sizeof(parent), "%s/..", dir);
	if (statfs(dir, &fs) || stat(dir, &st) || stat(parent, &up))
		return false;
	return fs.f_type == TMPFS_MAGIC && st.st_dev != up.st_dev;
}

/* Older kernels know neither option, or one: dropped one by one. */
static int tmpfs_mount(const char *dir, uint64_t size)
{
	static const char *const extras[] = {
		",huge=within_size,noswap",
		",huge=within_size",
		",noswap",
		"",
	};
	char options[160];

	for (size_t i = 0; i < sizeof(extras) / sizeof(extras[0]); i++) {
		snprintf(options, sizeof(options),
			 "size=%" PRIu64 ",nr_inodes=0,mode=0700%s", size,
			 extras[i]);
		if (!mount("ckptfs", dir, "tmpfs", MOUNT_FLAGS, options))
			return 0;
		if (errno != EINVAL)
			return -errno;
	}
	return -EINVAL;
}

/* One found is kept: it may hold what a killed daemon had accepted. */
static int tmpfs_open(const char *dir, uint64_t size, bool *fresh)
{
	char options[64];
	int rc = own_dir(dir);

	*fresh = false;
	if (rc)
		return rc;
	if (!is_tmpfs_mount(dir)) {
		rc = tmpfs_mount(dir, size);
		*fresh = !rc;
		return rc;
	}
	snprintf(options, sizeof(options), "size=%" PRIu64, size);
	if (mount("ckptfs", dir, "tmpfs", MS_REMOUNT | MOUNT_FLAGS, options))
		message_warning("cannot resize '%s' to %" PRIu64 " MiB: %s; "
				"it stays as it is",
				dir, size / MIB,
				strerror(errno)); /* more is in it */
	return 0;
}

static int place_paths(struct dram_place *p, const char *base)
{
	int n = snprintf(p->base, sizeof(p->base), "%s", base);

	/* Room for the names below it. */
	if (n < 0 ||
	    (size_t)n + sizeof("/dram/0123456789abcdef") > sizeof(p->base))
		return -ENAMETOOLONG;
	snprintf(p->dir, sizeof(p->dir), "%.240s/dram", base);
	snprintf(p->meta_dir, sizeof(p->meta_dir), "%.240s/meta", base);
	return 0;
}

/* Undoes a failed start; what was there before is someone's data, and stays. */
static void place_unmake(const struct dram_place *p, bool fresh)
{
	if (fresh)
		(void)umount2(p->dir, UMOUNT_NOFOLLOW);
	if (!p->base[0])
		return;
	(void)rmdir(p->dir);
	(void)rmdir(p->meta_dir);
	(void)rmdir(p->base);
	(void)rmdir(RUN_DIR);
}

static int place_mount(struct dram_place *p, const char *name, uint64_t limit,
		       uint64_t meta_limit)
{
	bool fresh = false, fresh_meta;
	char base[256];
	int rc;

	snprintf(base, sizeof(base), RUN_DIR "/%s", name);
	rc = place_paths(p, base);
	if (!rc)
		rc = own_dir(RUN_DIR);
	if (!rc)
		rc = own_dir(p->base);
	if (!rc)
		rc = tmpfs_open(p->dir, limit + headroom(limit), &fresh);
	if (!rc)
		rc = tmpfs_open(p->meta_dir, meta_limit + meta_limit / 4,
				&fresh_meta);
	if (rc) {
		snprintf(p->why, sizeof(p->why),
			 "cannot mount a tmpfs under " RUN_DIR ": %s",
			 strerror(-rc));
		place_unmake(p, fresh);
	}
	return rc;
}

/* ---- /dev/shm ---- */

static uint64_t fs_avail(const char *dir)
{
	struct statvfs v;

	return statvfs(dir, &v) ? 0 : (uint64_t)v.f_bavail * v.f_frsize;
}

static uint64_t dir_bytes(const char *dir)
{
	DIR *d = opendir(dir);
	uint64_t sum = 0;
	struct dirent *e;
	struct stat st;

	if (!d)
		return 0;
	while ((e = readdir(d)))
		if (!fstatat(dirfd(d), e->d_name, &st, AT_SYMLINK_NOFOLLOW) &&
		    S_ISREG(st.st_mode))
			sum += (uint64_t)st.st_blocks * 512;
	closedir(d);
	return sum;
}

static int shm_check(struct dram_place *p, uint64_t want)
{
	uint64_t have =
		fs_avail(SHM_DIR) + dir_bytes(p->dir) + dir_bytes(p->meta_dir);
	size_t len = strlen(p->why);

	if (have >= want)
		return 0;
	snprintf(p->why + len, sizeof(p->why) - len,
		 "%s" SHM_DIR " has %" PRIu64 " MiB, %" PRIu64
		 " MiB are wanted (dram=)",
		 len ? "; " : "", have / MIB, want / MIB);
	return -ENOSPC;
}

/* logind empties /dev/shm of a user's files when the last session ends. */
void dram_place_warn(const struct dram_place *p)
{
	if (p->own_tmpfs || geteuid() < FIRST_USER_UID ||
	    access("/run/systemd/seats", F_OK))
		return;
	message_warning("the DRAM tier is in '%s': systemd may remove it when "
			"you log out (RemoveIPC=; 'loginctl enable-linger' "
			"prevents it)",
			p->base);
}

static int shm_paths(struct dram_place *p, const char *name)
{
	char base[256];

	snprintf(base, sizeof(base), SHM_DIR "/" SHM_PREFIX "%u-%s",
		 (unsigned)geteuid(), name);
	return place_paths(p, base);
}

/* An earlier daemon of this mount was here, perhaps with fewer rights. */
static bool shm_found(const char *name)
{
	struct dram_place p;

	return !shm_paths(&p, name) && has_owner(p.base);
}

static int place_shm(struct dram_place *p, const char *name, uint64_t limit,
		     uint64_t meta_limit)
{
	int rc = shm_paths(p, name);

	if (rc)
		return rc;
	rc = shm_check(p, limit + meta_limit);
	if (!rc)
		rc = own_dir(p->base);
	if (!rc)
		rc = own_dir(p->dir);
	if (!rc)
		rc = own_dir(p->meta_dir);
	return rc;
}

int dram_place_open(const char *name, const char *nvme_dir, uint64_t limit,
		    uint64_t meta_limit, struct dram_place *out)
{
	struct dram_place p = { .owner_fd = -1,
				.why = "an earlier daemon's is found there" };
	int rc = -EEXIST;

	if (!shm_found(name))
		rc = place_mount(&p, name, limit, meta_limit);
	p.own_tmpfs = !rc;
	if (!rc)
		p.why[0] = '\0';
	else
		rc = place_shm(&p, name, limit, meta_limit);
	p.found = has_owner(p.base);
	if (!rc)
		rc = owner_write(p.base, nvme_dir, &p.owner_fd);
	if (rc && rc != -ENOSPC) {
		size_t len = strlen(p.why);

		snprintf(p.why + len, sizeof(p.why) - len, "%s'%.60s': %s",
			 len ? "; " : "", p.base, strerror(-rc));
	}
	if (own_place(p.base))
		p.base[0] = '\0'; /* not for us to remove */
	*out = p;                 /* also on failure: why */
	return rc;
}

/* ---- removing ---- */

static int remove_one(const char *path, const struct stat *st, int kind,
		      struct FTW *at)
{
	(void)st;
	(void)at;
	return kind == FTW_DP || kind == FTW_DNR ? rmdir(path) : unlink(path);
}

static void remove_tree(const char *path)
{
	(void)nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS | FTW_MOUNT);
}

/*
 * Lazily if it is busy: a job may still hold a mapping of a backing file, and
 * the memory goes when it does.
 */
static void unmount(const char *dir)
{
	if (!is_tmpfs_mount(dir))
		return;
	if (umount2(dir, UMOUNT_NOFOLLOW) && errno == EBUSY)
		(void)umount2(dir, MNT_DETACH | UMOUNT_NOFOLLOW);
}

void dram_place_close(struct dram_place *p)
{
	if (p->base[0] && p->owner_fd >= 0)
		close(p->owner_fd);
	p->owner_fd = -1;
}

void dram_place_remove(struct dram_place *p)
{
	if (!p->base[0])
		return;
	unmount(p->dir);
	unmount(p->meta_dir);
	remove_tree(p->base);
	(void)rmdir(RUN_DIR); /* if it was the last */
	dram_place_close(p);
}

/* ---- what a killed daemon left ---- */

static uint64_t place_bytes(const struct dram_place *p)
{
	const char *dirs[] = { p->dir, p->meta_dir };
	struct statvfs v;
	uint64_t sum = 0;

	for (int i = 0; i < 2; i++)
		if (!is_tmpfs_mount(dirs[i]))
			sum += dir_bytes(dirs[i]);
		else if (!statvfs(dirs[i], &v))
			sum += (uint64_t)(v.f_blocks - v.f_bfree) * v.f_frsize;
	return sum;
}

static int tell_leftover(const char *base, leftover_fn *fn, void *arg)
{
	char nvme[PATH_MAX] = "";
	struct dram_place p;
	bool lives = false;
	int fd;

	if (place_paths(&p, base) || own_place(base))
		return 0;
	fd = owner_open(base, O_RDONLY);
	if (fd >= 0) {
		lives = owner_lives(fd);
		owner_nvme(fd, nvme, sizeof(nvme));
		close(fd);
	}
	return lives ? 0 : fn(arg, base, nvme, place_bytes(&p));
}

static int leftovers_in(const char *dir, const char *prefix, leftover_fn *fn,
			void *arg)
{
	DIR *d = opendir(dir);
	struct dirent *e;
	char base[256];
	int rc = 0;

	while (d && !rc && (e = readdir(d))) {
		if (e->d_name[0] == '.' ||
		    strncmp(e->d_name, prefix, strlen(prefix)) != 0)
			continue;
		snprintf(base, sizeof(base), "%s/%.200s", dir, e->d_name);
		rc = tell_leftover(base, fn, arg);
	}
	if (d)
		closedir(d);
	return rc;
}

int dram_place_leftovers(leftover_fn *fn, void *arg)
{
	char prefix[32];
	int rc;

	rc = leftovers_in(RUN_DIR, "", fn, arg);
	if (rc)
		return rc;
	snprintf(prefix, sizeof(prefix), SHM_PREFIX "%u-", (unsigned)geteuid());
	return leftovers_in(SHM_DIR, prefix, fn, arg);
}

static bool is_place(const char *base)
{
	static const char *const starts[] = { RUN_DIR "/",
					      SHM_DIR "/" SHM_PREFIX };

	for (int i = 0; i < 2; i++) {
		size_t len = strlen(starts[i]);
		const char *name = base + len;

		if (!strncmp(base, starts[i], len) && *name && *name != '.' &&
		    !strchr(name, '/'))
			return true;
	}
	return false;
}

int dram_place_free(const char *base)
{
	struct dram_place p = { .owner_fd = -1 };
	int rc;

	if (!is_place(base) || place_paths(&p, base))
		return -EINVAL;
	rc = own_place(base);
	if (rc)
		return rc;
	/* Held meanwhile, so that no daemon begins to use it. */
	p.owner_fd = owner_open(base, O_RDWR);
	rc = p.owner_fd < 0 ? 0 : owner_become(p.owner_fd);
	if (!rc)
		dram_place_remove(&p);
	dram_place_close(&p);
	if (rc)
		return rc;
	return access(base, F_OK) ? 0 : -EBUSY;
}
