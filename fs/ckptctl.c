/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ckptctl, the command line of a mount: the table of its commands and the
 * reading of their arguments.
 */
#include "fs/ckptctl.h"

#include <errno.h>
#include <getopt.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "ckpt_config.h"

static const char help[] =
	"usage: ckptctl COMMAND [PATH] [OPTION...]\n"
	"  status [PATH] [--json]            a mount's tiers and watermarks, or "
	"how far\n"
	"                                    the files at PATH have come\n"
	"  wait PATH [--level L] [--timeout S]\n"
	"                                    until PATH as it is now has "
	"reached L\n"
	"  drain [PATH] [--level L] [--timeout S]\n"
	"                                    until all of the mount has\n"
	"  evict PATH [--level L]            drop faster copies of what has "
	"reached L\n"
	"  leftovers [--free BASE]           DRAM that dead daemons left\n"
	"  tensors PATH [--depth N] [--json] the tensors in a file or directory, "
	"with\n"
	"                                    sums by dtype and by N levels of "
	"their names\n"
	"  diff A B [--json]                 which tensors of A changed in B, "
	"appeared, are\n"
	"                                    gone; exit status 0 none, 1 some, 2 "
	"trouble\n"
	"L is dram, nvme (the default) or remote; S is seconds. PATH is "
	"anything on a\n"
	"ckptfs mount; without it, the mount of the working directory or the "
	"only one.\n"
	"--json prints JSON, --version the version.\n"
	"Exit status: 0 done, 1 an error, 2 wrong usage, 3 time is over.\n"
	"See ckptctl(1), ckptfs(8).\n";

const char *const ctl_level_names[3] = { "dram", "nvme", "remote" };

enum {
	TAKES_PATH = 1,
	NEEDS_PATH = 2,
	TAKES_LEVEL = 4,
	TAKES_TIMEOUT = 8,
	TAKES_JSON = 16,
	TAKES_FREE = 32,
	TAKES_DEPTH = 64,
	TAKES_TWO = 128,
};

static const struct command {
	const char *name;
	int (*run)(const struct ctl_args *args);
	unsigned takes;
} commands[] = {
	{ "status", ctl_status, TAKES_PATH | TAKES_JSON },
	{ "wait", ctl_wait,
	  TAKES_PATH | NEEDS_PATH | TAKES_LEVEL | TAKES_TIMEOUT | TAKES_JSON },
	{ "drain", ctl_drain,
	  TAKES_PATH | TAKES_LEVEL | TAKES_TIMEOUT | TAKES_JSON },
	{ "evict", ctl_evict,
	  TAKES_PATH | NEEDS_PATH | TAKES_LEVEL | TAKES_JSON },
	{ "leftovers", ctl_leftovers, TAKES_FREE | TAKES_JSON },
	{ "tensors", ctl_tensors,
	  TAKES_PATH | NEEDS_PATH | TAKES_DEPTH | TAKES_JSON },
	{ "diff", ctl_diff, TAKES_PATH | NEEDS_PATH | TAKES_TWO | TAKES_JSON },
};

#define N_COMMANDS (sizeof(commands) / sizeof(commands[0]))

enum { OPT_LEVEL = 256, OPT_TIMEOUT, OPT_JSON, OPT_FREE, OPT_DEPTH };

static const struct option long_options[] = {
	{ "level", required_argument, NULL, OPT_LEVEL },
	{ "timeout", required_argument, NULL, OPT_TIMEOUT },
	{ "json", no_argument, NULL, OPT_JSON },
	{ "free", required_argument, NULL, OPT_FREE },
	{ "depth", required_argument, NULL, OPT_DEPTH },
	{ "help", no_argument, NULL, 'h' },
	{ "version", no_argument, NULL, 'V' },
	{ 0 },
};

int ctl_fail(const char *fmt, ...)
{
	va_list args;

	fputs("ckptctl: ", stderr);
	va_start(args, fmt);
	vfprintf(stderr, fmt, args);
	va_end(args);
	fputc('\n', stderr);
	return CTL_ERROR;
}

static int usage(const char *fmt, ...) PRINTF(1, 2);
static int usage(const char *fmt, ...)
{
	va_list args;

	fputs("ckptctl: ", stderr);
	va_start(args, fmt);
	vfprintf(stderr, fmt, args);
	va_end(args);
	fputs(" (see ckptctl --help)\n", stderr);
	return CTL_USAGE;
}

static int take_level(const char *s, struct ctl_args *a)
{
	for (unsigned l = 0; l < 3; l++)
		if (strcmp(s, ctl_level_names[l]) == 0) {
			a->level = (enum ctl_level)l;
			return 0;
		}
	return usage("--level %s: give dram, nvme or remote", s);
}

static int take_timeout(const char *s, struct ctl_args *a)
{
	char *end;

	errno = 0;
	a->timeout_s = strtod(s, &end);
	/* Written so that a NaN fails too. */
	if (end == s || *end || errno || !(a->timeout_s >= 0) ||
	    !(a->timeout_s < 1e9))
		return usage("--timeout %s is not a number of seconds", s);
	return 0;
}

static int take_depth(const char *s, struct ctl_args *a)
{
	char *end;
	long n = strtol(s, &end, 10);

	if (end == s || *end || n < 0 || n > 100)
		return usage("--depth %s: give a number from 0 to 100", s);
	a->depth = (int)n;
	return 0;
}

static int take_option(int opt, struct ctl_args *a, unsigned *given)
{
	switch (opt) {
	case OPT_LEVEL:
		*given |= TAKES_LEVEL;
		return take_level(optarg, a);
	case OPT_TIMEOUT:
		*given |= TAKES_TIMEOUT;
		return take_timeout(optarg, a);
	case OPT_JSON:
		*given |= TAKES_JSON;
		a->json = true;
		return 0;
	case OPT_FREE:
		*given |= TAKES_FREE;
		a->free_base = optarg;
		return 0;
	case OPT_DEPTH:
		*given |= TAKES_DEPTH;
		return take_depth(optarg, a);
	default:
		return CTL_USAGE; /* getopt has said why */
	}
}

static const struct command *find_command(const char *name)
{
	for (size_t i = 0; i < N_COMMANDS; i++)
		if (strcmp(commands[i].name, name) == 0)
			return &commands[i];
	return NULL;
}

/* argv[optind] and on: the command and its path. */
static int run(int argc, char **argv, struct ctl_args *a, unsigned given)
{
	const struct command *c;

	if (optind == argc) {
		fputs(help, stderr);
		return CTL_USAGE;
	}
	c = find_command(argv[optind]);
	if (!c)
		return usage("unknown command '%s'", argv[optind]);
	if (optind + 1 < argc) {
		a->path = argv[optind + 1];
		given |= TAKES_PATH;
	}
	if (optind + 2 < argc && c->takes & TAKES_TWO)
		a->path2 = argv[optind + 2];
	if (optind + 2 + (a->path2 != NULL) < argc)
		return usage("'%s' is one word too many",
			     argv[optind + 2 + (a->path2 != NULL)]);
	if (c->takes & NEEDS_PATH && !a->path)
		return usage("%s wants a PATH", c->name);
	if (c->takes & TAKES_TWO && !a->path2)
		return usage("%s wants two PATHs", c->name);
	if (given & ~c->takes)
		return usage("%s does not take that argument", c->name);
	return c->run(a);
}

int main(int argc, char **argv)
{
	struct ctl_args a = { .level = CTL_NO_LEVEL,
			      .timeout_s = -1,
			      .depth = -1 };
	unsigned given = 0;
	int opt, status;

	while ((opt = getopt_long(argc, argv, "hV", long_options, NULL)) !=
	       -1) {
		if (opt == 'h')
			return fputs(help, stdout) < 0;
		if (opt == 'V')
			return printf("ckptctl %s\n", CKPT_VERSION) < 0;
		status = take_option(opt, &a, &given);
		if (status)
			return status;
	}
	status = run(argc, argv, &a, given);
	if ((fflush(stdout) || ferror(stdout)) && !status)
		status = ctl_fail("cannot write: %s", strerror(errno));
	return status;
}
