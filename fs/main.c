/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ckptfs, the daemon: reads its command line, checks what can be checked
 * where the caller can still read of it, goes into the background and runs
 * the session.
 */
#include <malloc.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/utsname.h>

#include "ckpt_config.h"
#include "fs/mountpoint.h"
#include "fs/session.h"
#include "metadata/fault.h"
#include "metadata/log_message.h"

static const char help[] =
	"usage: ckptfs [SOURCE] MOUNTPOINT [-o OPTION,...] [-f] [-d]\n"
	"Mounts a checkpoint filesystem. SOURCE is the remote, or none.\n"
	"  dram=SIZE         the DRAM tier: 64G or 25% (a quarter of the RAM)\n"
	"  nvme=DIR          where all local state lies (one a mount point, in\n"
	"                    /var/lib/ckptfs or ~/.local/state/ckptfs)\n"
	"  nvme_size=SIZE    what it may take (the filesystem)\n"
	"  remote=REMOTE     dir:/PATH\n"
	"  fsync=LEVEL       what fsync promises: dram, nvme, remote (nvme)\n"
	"  io=MODE           passthrough, served, auto (auto)\n"
	"  reserve=yes|no    hold the DRAM from mount on (yes with dram=)\n"
	"  flush_rate=SIZE   at most this a second from DRAM to NVMe\n"
	"  log=FILE          messages go there (syslog)\n"
	"  faulty=SPEC       NVMe fails on purpose, for drills: ckptfs(8)\n"
	"  allow_other       others may use it (always, as root)\n"
	"  ro noatime ...    as for mount(8)\n"
	"-f stays in the foreground, -d traces all requests there.\n"
	"--help, --version. To unmount: umount MOUNTPOINT, or fusermount3 -u.\n"
	"State and control: ckptctl(1). All options: ckptfs(8). Example:\n"
	"  ckptfs /ckpt -o dram=64G,nvme=/nvme/ckpt,remote=dir:/mnt/nfs/run7\n";

static const char *yes_no(int have)
{
	return have ? "yes" : "no";
}

static void print_version(void)
{
	struct utsname u;

	uname(&u);
	printf("ckptfs %s\n", CKPT_VERSION);
	printf("libfuse %s (built with %s)\n", fuse_pkgversion(),
	       CKPT_LIBFUSE_VERSION);
	printf("RocksDB %s\n", CKPT_ROCKSDB_VERSION);
	printf("kernel %s\n", u.release);
	printf("passthrough: %s\n", yes_no(CKPT_HAVE_PASSTHROUGH));
	printf("io_uring: %s\n", yes_no(CKPT_HAVE_URING));
	printf("S3: %s\n", yes_no(CKPT_HAVE_S3));
	printf("CUDA: %s\n", yes_no(CKPT_HAVE_CUDA));
	printf("fault points: %s\n", yes_no(fault_is_built()));
}

static int fail(const char *why)
{
	message_error("%s", why);
	return 1;
}

/* Every open inode has descriptors here. */
static void raise_descriptors(void)
{
	struct rlimit r;

	if (getrlimit(RLIMIT_NOFILE, &r))
		return;
	r.rlim_cur = r.rlim_max;
	(void)setrlimit(RLIMIT_NOFILE, &r);
}

static int run(const struct options *o)
{
	struct startup startup;
	char why[512];

	if (mountpoint_prepare(o, why, sizeof(why)))
		return fail(why);
	if (o->mode == RUN_FAKE)
		return 0;
	if (o->debug)
		message_set_level(MESSAGE_DEBUG);
	else if (!o->foreground)
		message_set_level(MESSAGE_WARNING);
	umask(0077); /* local copies are 0600 in 0700 */
	raise_descriptors();
	if (startup_begin(o->foreground, &startup))
		return fail("cannot go into the background: try -f");
	session_block_signals();
	return session_run(o, &startup) ? 1 : 0;
}

/* A large buffer that is freed goes back, whatever was freed before: glibc
 * would raise the limit, and keep them in the arena of each thread. */
static void bound_malloc(void)
{
	mallopt(M_MMAP_THRESHOLD, 256 * 1024);
	mallopt(M_ARENA_MAX, 4);
}

int main(int argc, char **argv)
{
	struct options o;
	char why[512];
	int status;

	bound_malloc();
	if (startup_descriptors())
		return 1; /* there may be nowhere to say so */
	if (options_parse(argc, argv, &o, why, sizeof(why))) {
		status = fail(why);
		status = 2;
	} else if (o.mode == RUN_HELP) {
		status = fputs(help, stdout) < 0;
	} else if (o.mode == RUN_VERSION) {
		print_version();
		status = 0;
	} else {
		status = run(&o);
	}
	options_fini(&o);
	return status;
}
