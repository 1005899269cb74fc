/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where the DRAM tier lies, who owns it and who may free it; and the budget:
 * the ballast fills what nobody took, shrinks for whoever takes, comes back
 * after a give and after a daemon's death, and stops where a cgroup does.
 */
#include "engine/reserve.h"

#include <stdatomic.h>
#include <sys/statfs.h>
#include <time.h>

#include "check.h"

#define MIB ((uint64_t)1 << 20)
#define LIMIT (512 * MIB)
#define SLACK (32 * MIB)
#define WAIT_MS 60000
#define CGROUP_MOST (700 * MIB) /* 512 MiB of it must stay free */

static char name[32];
static struct dram_place place;
static pid_t test_pid;

static void cleanup(void)
{
	if (getpid() == test_pid)
		dram_place_remove(&place);
}

static void place_open(uint64_t limit)
{
	dram_place_close(&place);
	CHECK_EQ(dram_place_open(name, "/nvme/some where", limit, 16 * MIB,
				 &place),
		 0);
}

/* ---- the place ---- */

static uint64_t fs_size(const char *dir)
{
	struct statfs s;

	CHECK(!statfs(dir, &s));
	return (uint64_t)s.f_blocks * (uint64_t)s.f_bsize;
}

static void write_file(const char *dir, const char *file, size_t len)
{
	char path[PATH_MAX];
	char *buf = calloc(1, len);
	int fd;

	snprintf(path, sizeof(path), "%s/%s", dir, file);
	fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
	CHECK(buf && fd >= 0);
	CHECK_EQ(write(fd, buf, len), len);
	close(fd);
	free(buf);
}

static void kept_and_resized(void)
{
	char path[PATH_MAX];
	struct stat st;

	place_open(LIMIT);
	CHECK(place.own_tmpfs && !place.why[0]);
	CHECK(fs_size(place.dir) > LIMIT);
	CHECK(!stat(place.dir, &st));
	CHECK_EQ(st.st_mode & 07777, 0700);
	write_file(place.dir, "0000000000000001", 3 * MIB);
	place_open(2 * LIMIT);
	CHECK(fs_size(place.dir) > 2 * LIMIT);
	place_open(LIMIT);
	CHECK(fs_size(place.dir) < 16 * LIMIT);
	snprintf(path, sizeof(path), "%s/0000000000000001", place.dir);
	CHECK(!stat(path, &st));
	CHECK_EQ(st.st_size, 3 * MIB);
}

static int note_ours(void *arg, const char *base, const char *nvme,
		     uint64_t bytes)
{
	uint64_t *found = arg;

	if (strcmp(base, place.base) != 0)
		return 0;
	CHECK_STR(nvme, "/nvme/some where");
	*found = bytes;
	return 0;
}

static void open_and_die(void)
{
	pid_t pid = fork();
	int status;

	if (!pid) {
		place_open(LIMIT);
		_exit(0);
	}
	CHECK(pid > 0 && waitpid(pid, &status, 0) == pid);
	CHECK_EQ(status, 0);
}

static void leftovers(void)
{
	struct dram_place other;
	uint64_t found = 0;

	CHECK_EQ(dram_place_leftovers(note_ours, &found), 0);
	CHECK_EQ(found, 0); /* we live */
	CHECK_EQ(dram_place_free(place.base), -EBUSY);
	CHECK_EQ(dram_place_free("/run/ckptfs/../../etc"), -EINVAL);
	CHECK_EQ(dram_place_free("/etc"), -EINVAL);
	CHECK_EQ(dram_place_free("/run/ckptfs/no-such"), -ENOENT);

	CHECK_EQ(dram_place_open(name, "/x", LIMIT, MIB, &other), -EBUSY);

	dram_place_close(&place);
	open_and_die();
	CHECK_EQ(dram_place_leftovers(note_ours, &found), 0);
	CHECK(found >= 3 * MIB);
	CHECK_EQ(dram_place_free(place.base), 0);
	CHECK(access(place.base, F_OK) && errno == ENOENT);
}

/* What an ordinary user gets. Exit code of the child: the line that failed. */
static int in_dev_shm(void)
{
	struct dram_place p;

	if (setgid(65534) || setuid(65534))
		return 77;
	if (dram_place_open(name, "/x", 8 * MIB, MIB, &p))
		return 1;
	if (p.own_tmpfs || !strstr(p.why, "tmpfs") ||
	    strncmp(p.dir, "/dev/shm/ckptfs-65534-", 22) != 0)
		return 2;
	write_file(p.dir, "0000000000000001", MIB);
	write_file(p.meta_dir, "CURRENT", 10);
	dram_place_remove(&p);
	if (!access(p.base, F_OK))
		return 3;
	if (dram_place_open(name, "/x", UINT64_C(1) << 50, MIB, &p) !=
		    -ENOSPC ||
	    !strstr(p.why, "MiB"))
		return 4;
	return 0;
}

static void in_child(int (*run)(void))
{
	pid_t pid = fork();
	int status;

	if (!pid)
		_exit(run());
	CHECK(pid > 0 && waitpid(pid, &status, 0) == pid);
	CHECK(WIFEXITED(status));
	if (WEXITSTATUS(status) != 77)
		CHECK_EQ(WEXITSTATUS(status), 0);
}

/* ---- the budget ---- */

static uint64_t ballast_bytes(void)
{
	char path[PATH_MAX];
	struct stat st;

	snprintf(path, sizeof(path), "%s/ballast", place.dir);
	return stat(path, &st) ? 0 : (uint64_t)st.st_blocks * 512;
}

static struct reserve_state filled(struct reserve *r)
{
	struct reserve_state s;

	CHECK_EQ(reserve_wait_filled(r, WAIT_MS), 0);
	reserve_state(r, &s);
	CHECK_STR(s.note, "");
	CHECK_EQ(s.ballast, s.target);
	CHECK_EQ(s.ballast, ballast_bytes());
	return s;
}

static void taken_and_given(void)
{
	struct reserve *r;
	struct reserve_state s;

	CHECK_EQ(reserve_start(place.dir, LIMIT, true, &r), 0);
	CHECK_EQ(filled(r).ballast, LIMIT - SLACK);

	CHECK_EQ(reserve_take(r, 4096), 0); /* slack holds it */
	CHECK_EQ(ballast_bytes(), LIMIT - SLACK);
	CHECK_EQ(reserve_take(r, 100 * MIB - 4096), 0);
	CHECK(ballast_bytes() <= LIMIT - 100 * MIB); /* at once */
	CHECK_EQ(filled(r).ballast, LIMIT - SLACK - 100 * MIB);
	CHECK_EQ(reserve_take(r, LIMIT), -ENOSPC);
	CHECK_EQ(reserve_take(r, UINT64_MAX), -ENOSPC);
	CHECK_EQ(reserve_take(r, LIMIT - 100 * MIB), 0);
	CHECK_EQ(ballast_bytes(), 0);
	CHECK_EQ(reserve_take(r, 1), -ENOSPC);
	reserve_charge(r, 10 * MIB); /* there is no choice */
	reserve_state(r, &s);
	CHECK_EQ(s.charged, LIMIT + 10 * MIB);
	reserve_give(r, LIMIT);
	CHECK_EQ(filled(r).ballast, LIMIT - SLACK - 10 * MIB);
	reserve_give(r, UINT64_MAX);
	CHECK_EQ(filled(r).charged, 0);
	reserve_stop(r);
	CHECK_EQ(ballast_bytes(), 0);
}

/* Nobody else can have it, and the ballast holds it until it is taken. */
static void promised(void)
{
	struct reserve *r;
	struct reserve_state s;

	CHECK_EQ(reserve_start(place.dir, LIMIT, true, &r), 0);
	CHECK_EQ(filled(r).ballast, LIMIT - SLACK);
	CHECK_EQ(reserve_promise(r, 100 * MIB), 0);
	CHECK_EQ(ballast_bytes(), LIMIT - SLACK);
	CHECK_EQ(reserve_take(r, LIMIT - 100 * MIB + 1), -ENOSPC);
	CHECK_EQ(reserve_promise(r, LIMIT - 100 * MIB + 1), -ENOSPC);
	reserve_take_promised(r, 60 * MIB);
	CHECK(ballast_bytes() <= LIMIT - 60 * MIB);
	reserve_state(r, &s);
	CHECK_EQ(s.charged, 60 * MIB);
	CHECK_EQ(s.promised, 40 * MIB);
	CHECK_EQ(reserve_take(r, LIMIT - 100 * MIB), 0);
	CHECK_EQ(reserve_take(r, 1), -ENOSPC);
	reserve_forgo(r, 40 * MIB);
	CHECK_EQ(reserve_take(r, 40 * MIB), 0);
	CHECK_EQ(reserve_take(r, 1), -ENOSPC);
	reserve_stop(r);
}

static void remove_file(const char *file)
{
	char path[PATH_MAX];

	snprintf(path, sizeof(path), "%s/%s", place.dir, file);
	CHECK(!unlink(path));
}

/* As a passthrough writer does: the ballast makes room, whatever was charged. */
static void taken_without_asking(void)
{
	struct reserve *r;

	CHECK_EQ(reserve_start(place.dir, LIMIT, true, &r), 0);
	CHECK_EQ(filled(r).ballast, LIMIT - SLACK);
	CHECK_EQ(reserve_take(r, 50 * MIB), 0);
	write_file(place.dir, "taken", 100 * MIB);
	CHECK_EQ(reserve_look(r), 0);
	CHECK(ballast_bytes() <= LIMIT - 100 * MIB);
	CHECK_EQ(reserve_take(r, LIMIT - 50 * MIB + 1), -ENOSPC);
	CHECK_EQ(reserve_take(r, 50 * MIB), 0); /* it is charged at last */
	CHECK_EQ(filled(r).ballast, LIMIT - SLACK - 100 * MIB);
	CHECK_EQ(reserve_take(r, LIMIT - 110 * MIB), 0);
	write_file(place.dir, "more", LIMIT - 110 * MIB);
	write_file(place.dir, "taken", 120 * MIB);
	CHECK_EQ(reserve_look(r), 10 * MIB); /* to be evicted */
	CHECK_EQ(reserve_take(r, 1), -ENOSPC);
	remove_file("taken");
	remove_file("more");
	reserve_give(r, UINT64_MAX);
	CHECK_EQ(reserve_look(r), 0);
	CHECK_EQ(filled(r).ballast, LIMIT - SLACK);
	reserve_stop(r);
}

static void numbers_only(void)
{
	struct reserve *r;
	struct reserve_state s;

	CHECK_EQ(reserve_start(place.dir, LIMIT, false, &r), 0);
	CHECK_EQ(reserve_wait_filled(r, 0), 0);
	CHECK_EQ(reserve_take(r, LIMIT), 0);
	CHECK_EQ(reserve_take(r, 1), -ENOSPC);
	reserve_give(r, MIB);
	reserve_state(r, &s);
	CHECK_EQ(s.charged, LIMIT - MIB);
	CHECK_EQ(s.ballast, 0);
	CHECK_EQ(ballast_bytes(), 0);
	reserve_stop(r);
	reserve_stop(NULL);
}

static int fill_and_die(void)
{
	struct reserve *r;

	if (reserve_start(place.dir, LIMIT, true, &r) ||
	    reserve_wait_filled(r, WAIT_MS))
		return 1;
	return 0; /* by _exit: the ballast stays */
}

/*
 * The next daemon finds ballast and backing files, and must not grow over
 * what it has not charged yet.
 */
static void carried_on(void)
{
	struct reserve *r;
	struct reserve_state s;

	in_child(fill_and_die);
	CHECK_EQ(ballast_bytes(), LIMIT - SLACK);
	write_file(place.dir, "0000000000000002", 64 * MIB);
	CHECK_EQ(reserve_start(place.dir, LIMIT, true, &r), 0);
	reserve_state(r, &s);
	CHECK(s.ballast >= LIMIT - SLACK - 66 * MIB);
	CHECK(filled(r).ballast <= LIMIT - SLACK - 64 * MIB);
	reserve_charge(r, 64 * MIB);
	CHECK_EQ(reserve_take(r, 2 * MIB), 0);
	reserve_give(r, 66 * MIB);
	CHECK_EQ(filled(r).ballast, LIMIT - SLACK);
	reserve_stop(r);
}

static struct reserve *shared;
static _Atomic uint64_t held;

static void *take_and_give(void *arg)
{
	unsigned seed = (unsigned)(uintptr_t)arg;

	for (int i = 0; i < 400; i++) {
		uint64_t len = (uint64_t)(rand_r(&seed) % 100 + 1) * MIB / 2;

		if (reserve_take(shared, len) == -ENOSPC)
			continue;
		CHECK(atomic_fetch_add(&held, len) + len <= LIMIT);
		atomic_fetch_sub(&held, len);
		reserve_give(shared, len);
	}
	return NULL;
}

static void by_many(void)
{
	pthread_t threads[4];

	CHECK_EQ(reserve_start(place.dir, LIMIT, true, &shared), 0);
	for (uintptr_t i = 0; i < 4; i++)
		CHECK(!pthread_create(&threads[i], NULL, take_and_give,
				      (void *)(i + 1)));
	for (int i = 0; i < 4; i++)
		CHECK(!pthread_join(threads[i], NULL));
	CHECK_EQ(filled(shared).ballast, LIMIT - SLACK);
	reserve_stop(shared);
}

/* ---- a cgroup that cannot spare it ---- */

static bool put(const char *dir, const char *file, const char *text)
{
	char path[PATH_MAX];
	int fd;
	bool ok;

	snprintf(path, sizeof(path), "%s/%s", dir, file);
	fd = open(path, O_WRONLY);
	if (fd < 0)
		return false;
	ok = write(fd, text, strlen(text)) == (ssize_t)strlen(text);
	close(fd);
	return ok;
}

static char cgroup[256];

static bool cgroup_make(void)
{
	static const char *const kinds[][2] = {
		{ "/sys/fs/cgroup/memory", "memory.limit_in_bytes" },
		{ "/sys/fs/cgroup", "memory.max" },
	};
	char most[32];

	snprintf(most, sizeof(most), "%llu", (unsigned long long)CGROUP_MOST);
	for (int i = 0; i < 2; i++) {
		snprintf(cgroup, sizeof(cgroup), "%s/%s", kinds[i][0], name);
		if (mkdir(cgroup, 0755))
			continue;
		if (put(cgroup, kinds[i][1], most))
			return true;
		rmdir(cgroup);
	}
	return false;
}

static int stops_short(void)
{
	struct reserve_state s;
	struct reserve *r;

	if (!put(cgroup, "cgroup.procs", "0"))
		return 77;
	if (reserve_start(place.dir, LIMIT, true, &r) ||
	    reserve_wait_filled(r, WAIT_MS))
		return 1;
	reserve_state(r, &s);
	reserve_stop(r);
	if (s.ballast > CGROUP_MOST - 512 * MIB || s.ballast != s.target)
		return 2;
	if (s.ballast < 64 * MIB)
		return 3;
	fprintf(stderr, "%s\n", s.note);
	return strstr(s.note, "the cgroup has") ? 0 : 4;
}

static void cgroup_heeded(void)
{
	if (!cgroup_make()) {
		fprintf(stderr, "no cgroup can be made here: not tested\n");
		return;
	}
	in_child(stops_short);
	CHECK(!rmdir(cgroup));
}

int main(void)
{
	if (geteuid() != 0)
		SKIP("mounting a tmpfs needs root");
	test_pid = getpid();
	snprintf(name, sizeof(name), "unit-%d", (int)test_pid);
	check_at_end(cleanup);
	place_open(LIMIT);
	if (!place.own_tmpfs)
		SKIP("no tmpfs can be mounted: %s", place.why);

	kept_and_resized();
	leftovers();
	in_child(in_dev_shm);
	place_open(LIMIT);
	taken_without_asking();
	numbers_only();
	taken_and_given();
	promised();
	carried_on();
	by_many();
	cgroup_heeded();
	return 0;
}
