/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The command line: sizes, defaults, what mount(8) passes, and that whatever
 * is wrong is named in one line.
 */
#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "fs/options.h"

#define WORDS(...) ((char *[]){ __VA_ARGS__, NULL })

static char why[512];

static int parse(struct options *o, char **words)
{
	int n = 0;

	while (words[n])
		n++;
	why[0] = '\0';
	return options_parse(n, words, o, why, sizeof(why));
}

static void refuses(const char *opts, const char *said)
{
	struct options o;

	assert(parse(&o, WORDS("ckptfs", "/mnt", "-o", (char *)opts)) ==
	       -EINVAL);
	if (!strstr(why, said)) {
		fprintf(stderr, "'%s': '%s' is not in '%s'\n", opts, said, why);
		abort();
	}
	assert(!strchr(why, '\n'));
	options_fini(&o);
}

static void takes(struct options *o, const char *opts)
{
	int err = parse(o, WORDS("ckptfs", "/mnt", "-o", (char *)opts));

	if (err)
		fprintf(stderr, "'%s': %s\n", opts, why);
	assert(!err);
}

static void test_sizes(void)
{
	static const struct {
		const char *text;
		uint64_t bytes;
	} good[] = {
		{ "0", 0 },
		{ "100", 100 },
		{ "100B", 100 },
		{ "4k", 4096 },
		{ "64G", UINT64_C(64) << 30 },
		{ "64GiB", UINT64_C(64) << 30 },
		{ "64gb", UINT64_C(64) << 30 },
		{ "1.5M", 3 << 19 },
		{ "2T", UINT64_C(2) << 40 },
		{ "25%", 250 },
		{ "0.5%", 5 },
		{ "100%", 1000 },
	};
	static const char *const bad[] = {
		"",    "G",   "-1G",  "+1",   "1X",     "1Gx", "0x10",
		"inf", "1e9", "1..5", "101%", "1 G",    ".",   "%",
		"1 ",  " 1",  "nan",  "1G%",  "1.5.5G",
	};
	uint64_t n;

	for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++)
		assert(!size_parse(good[i].text, 1000, &n) &&
		       n == good[i].bytes);
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		assert(size_parse(bad[i], 1000, &n) == -EINVAL);
	assert(size_parse("25%", 0, &n) == -EINVAL);
	assert(size_parse("99999P", 0, &n) == -ERANGE);
}

static void test_defaults(void)
{
	struct options o;

	assert(!parse(&o, WORDS("ckptfs", "/mnt")));
	assert(o.mode == RUN_MOUNT && !o.helper && !o.foreground);
	assert(o.dram == memory_size() / 4 && !o.reserve);
	assert(o.fsync == LEVEL_NVME && o.io == IO_AUTO);
	assert(!o.remote && !o.log && !o.faulty && !o.nvme_size);
	assert(!strcmp(o.mountpoint, "/mnt"));
	assert(!strcmp(o.shown_source, "none"));
	assert(o.nvme_is_default && *o.nvme == '/');
	assert(strstr(o.nvme, "/ckptfs/mnt"));
	assert(o.allow_other == (geteuid() == 0));
	options_fini(&o);
}

static void test_all_options(void)
{
	struct options o;

	takes(&o, "dram=2G,nvme=/n,nvme_size=1T,remote=dir:/r,fsync=remote,"
		  "io=served,flush_rate=2G,log=/l,faulty=write:error=EIO");
	assert(o.dram == UINT64_C(2) << 30 && o.reserve);
	assert(!strcmp(o.nvme, "/n") && !o.nvme_is_default);
	assert(o.nvme_size == UINT64_C(1) << 40);
	assert(!strcmp(o.remote, "dir:/r") && o.fsync == LEVEL_REMOTE);
	assert(o.io == IO_SERVED && o.flush_rate == UINT64_C(2) << 30);
	assert(!strcmp(o.log, "/l") && !strcmp(o.faulty, "write:error=EIO"));
	options_fini(&o);

	takes(&o, "reserve=no,dram=25%");
	assert(o.dram == memory_size() / 4 && !o.reserve);
	options_fini(&o);

	/* A comma that belongs to the value. */
	takes(&o, "nvme=/a\\,b");
	assert(!strcmp(o.nvme, "/a,b"));
	options_fini(&o);
}

static void test_generic_options(void)
{
	struct options o;

	takes(&o, "rw,noauto,user,_netdev,nofail,x-systemd.automount,defaults,"
		  "dev,suid,exec,noatime,default_permissions,relatime");
	assert(!strcmp(o.kernel, "rw,dev,suid,exec,noatime"));
	options_fini(&o);
	takes(&o, "ro,context=\"a:b\"");
	assert(!strcmp(o.kernel, "ro,context=\"a:b\""));
	options_fini(&o);
}

static void test_refusals(void)
{
	refuses("drm=4G", "'drm': did you mean 'dram='");
	refuses("nvmesize=4G", "'nvme_size='");
	refuses("nvme=/n,nvme_size=1M", "64M or more");
	refuses("dram=100000G", "more than this machine has");
	refuses("alow_other", "'allow_other'");
	refuses("zzzzzzzz=1", "unknown option 'zzzzzzzz'");
	refuses("dram", "'dram' wants a value");
	refuses("ro=1", "'ro' takes no value");
	refuses("dram=lots", "dram=lots is not a size");
	refuses("dram=1M", "too small");
	refuses("flush_rate=10%", "flush_rate=10%");
	refuses("sync", "use fsync(2)");
	refuses("dirsync", "use fsync(2)");
	refuses("fsync=disk", "dram, nvme or remote");
	refuses("fsync=remote", "without a remote");
	refuses("io=fast", "io=fast");
	refuses("reserve=maybe", "reserve=maybe");
	refuses("nvme=", "wants a path");
	refuses("remote=dir:here", "absolute path");
	refuses("remote=here", "not a remote");
	refuses("remote=s3://key:secret@b/p", "do not belong");
	assert(!strstr(why, "secret"));
	refuses("remount", "cannot be remounted");
}

static void test_places(void)
{
	struct options o;

	assert(!parse(&o, WORDS("ckptfs", "dir:/r", "/mnt/", "-f")));
	assert(!strcmp(o.remote, "dir:/r") && !strcmp(o.mountpoint, "/mnt"));
	assert(o.foreground);
	options_fini(&o);
	assert(!parse(&o, WORDS("ckptfs", "-odram=1G", "none", "--", "/mnt")));
	assert(!o.remote && o.dram == UINT64_C(1) << 30);
	options_fini(&o);
	assert(parse(&o, WORDS("ckptfs")) == -EINVAL);
	assert(strstr(why, "no mount point"));
	options_fini(&o);
	assert(parse(&o, WORDS("ckptfs", "a", "b", "c")) == -EINVAL);
	assert(strstr(why, "'c'"));
	options_fini(&o);
	assert(parse(&o, WORDS("ckptfs", "dir:/r", "/mnt", "-o",
			       "remote=dir:/other")) == -EINVAL);
	assert(strstr(why, "two remotes"));
	options_fini(&o);
	assert(parse(&o, WORDS("ckptfs", "--what", "/mnt")) == -EINVAL);
	assert(strstr(why, "'--what'"));
	options_fini(&o);
	assert(!parse(&o, WORDS("ckptfs", "--help")) && o.mode == RUN_HELP);
	options_fini(&o);
}

static void test_mount_helper(void)
{
	struct options o;

	assert(!parse(&o,
		      WORDS("/sbin/mount.fuse.ckptfs", "none", "/mnt", "-sn",
			    "-v", "-t", "fuse.ckptfs", "-o", "rw,dram=1G")));
	assert(o.helper && o.mode == RUN_MOUNT && !o.foreground);
	assert(!strcmp(o.kernel, geteuid() ? "rw" : "suid,dev,rw"));
	options_fini(&o);
	/* mount -f: fake. */
	assert(!parse(&o, WORDS("mount.fuse.ckptfs", "none", "/mnt", "-f")));
	assert(o.mode == RUN_FAKE && !o.foreground);
	options_fini(&o);
}

static void test_secrets(void)
{
	static const char *const pairs[][2] = {
		{ "dir:/mnt/a@b?c", "dir:/mnt/a@b?c" },
		{ "s3://bucket/p", "s3://bucket/p" },
		{ "s3://k:s@bucket/p", "s3://bucket/p" },
		{ "s3://k:s@bucket/p?token=x", "s3://bucket/p" },
		{ "s3://bucket/a@b", "s3://bucket/a@b" },
	};

	for (size_t i = 0; i < sizeof(pairs) / sizeof(pairs[0]); i++) {
		char *s = without_secrets(pairs[i][0]);

		assert(s && !strcmp(s, pairs[i][1]));
		free(s);
	}
}

static void test_default_dirs_differ(void)
{
	static const char *const paths[] = { "/",   "/a/b",   "/a-b", "/a",
					     "/.a", "/a%2db", "/a b" };
	char *dir[7], deep[3000];

	for (size_t i = 0; i < 7; i++) {
		dir[i] = default_nvme_dir(paths[i]);
		assert(dir[i]);
		for (size_t j = 0; j < i; j++)
			assert(strcmp(dir[i], dir[j]) != 0);
	}
	for (size_t i = 0; i < 7; i++)
		free(dir[i]);
	memset(deep, 'x', sizeof(deep) - 1);
	deep[0] = '/';
	deep[sizeof(deep) - 1] = '\0';
	dir[0] = default_nvme_dir(deep);
	assert(dir[0] && strlen(strrchr(dir[0], '/') + 1) <= 255);
	free(dir[0]);
}

int main(void)
{
	test_sizes();
	test_defaults();
	test_all_options();
	test_generic_options();
	test_refusals();
	test_places();
	test_mount_helper();
	test_secrets();
	test_default_dirs_differ();
	puts("options: ok");
	return 0;
}
