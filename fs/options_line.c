/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The command line: `ckptfs [SOURCE] MOUNTPOINT [-o OPTS] [-f] [-d]`, and
 * what mount(8) calls helpers with: `mount.fuse.ckptfs SOURCE DIR [-sfnv]
 * [-N NS] [-t TYPE] -o OPTS`, where -f means not to mount. By hand: getopt
 * cannot tell these two apart, and its messages are not ours.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/statvfs.h>

#include "fs/options_parts.h"

struct line {
	struct parse p;
	int argc, next;
	char **argv;
	const char *places[2];
	unsigned n_places;
};

/* Splits at commas; a backslash keeps the next one. */
static int take_opts(struct parse *p, const char *opts)
{
	CLEANUP(free_p) char *item = malloc(strlen(opts) + 1);
	size_t n = 0;
	int err = 0;

	if (!item)
		return -ENOMEM;
	for (;; opts++) {
		if (*opts == '\\' && opts[1])
			item[n++] = *++opts;
		else if (*opts && *opts != ',')
			item[n++] = *opts;
		else {
			item[n] = '\0';
			if (n)
				err = parse_option(p, item);
			n = 0;
			if (err || !*opts)
				return err;
		}
	}
}

/* The value behind a letter: "-oX" or "-o X". */
static const char *value_of(struct line *l, const char *rest)
{
	if (*rest)
		return rest;
	return l->next < l->argc ? l->argv[l->next++] : NULL;
}

static int take_letter(struct line *l, const char *arg)
{
	struct options *o = l->p.o;
	const char *value;

	switch (arg[1]) {
	case 'o':
		value = value_of(l, arg + 2);
		if (!value)
			return parse_fail(&l->p, "-o wants options");
		return take_opts(&l->p, value);
	case 'N':
	case 't':
		if (o->helper && value_of(l, arg + 2))
			return 0;
		break;
	case 'h':
		o->mode = RUN_HELP;
		return 0;
	case 'V':
		o->mode = RUN_VERSION;
		return 0;
	default:
		break;
	}
	return parse_fail(&l->p, "unknown flag '%s' (see ckptfs --help)", arg);
}

/* -f, -d; from mount(8) also -s, -n, -v, also several in one. */
static int take_flags(struct line *l, const char *arg)
{
	struct options *o = l->p.o;
	const char *known = o->helper ? "fsnvr" : "fdsn";

	if (strspn(arg + 1, known) != strlen(arg + 1))
		return take_letter(l, arg);
	if (strchr(arg, 'd'))
		o->debug = o->foreground = true;
	if (strchr(arg, 'r'))
		return parse_for_kernel(&l->p, "ro");
	if (!strchr(arg, 'f'))
		return 0;
	if (o->helper)
		o->mode = RUN_FAKE;
	else
		o->foreground = true;
	return 0;
}

static int take_word(struct line *l, const char *arg)
{
	struct options *o = l->p.o;

	if (strcmp(arg, "--help") == 0)
		o->mode = RUN_HELP;
	else if (strcmp(arg, "--version") == 0)
		o->mode = RUN_VERSION;
	else
		return parse_fail(&l->p,
				  "unknown flag '%s' (see ckptfs "
				  "--help)",
				  arg);
	return 0;
}

static int take_place(struct line *l, const char *arg)
{
	if (l->n_places == 2)
		return parse_fail(&l->p,
				  "'%s' is one word too many: "
				  "ckptfs [SOURCE] MOUNTPOINT -o OPTIONS",
				  arg);
	l->places[l->n_places++] = arg;
	return 0;
}

static int take_all(struct line *l)
{
	bool only_places = false;
	int err = 0;

	while (!err && l->next < l->argc && l->p.o->mode < RUN_HELP) {
		const char *arg = l->argv[l->next++];

		if (only_places || *arg != '-' || !arg[1])
			err = take_place(l, arg);
		else if (strcmp(arg, "--") == 0)
			only_places = true;
		else if (arg[1] == '-')
			err = take_word(l, arg);
		else
			err = take_flags(l, arg);
	}
	return err;
}

/* ---- when all of it is known ------------------------------------------ */

static int finish_places(struct line *l)
{
	struct options *o = l->p.o;
	const char *source = l->n_places == 2 ? l->places[0] : "none";
	const char *mountpoint = l->places[l->n_places - 1];
	CLEANUP(free_p) char *path = NULL;
	int err = 0;

	/* Where there is none, fstab often names the type again. */
	if (strcmp(source, "ckptfs") != 0)
		err = parse_remote(&l->p, "", source);
	if (!err)
		err = parse_path(&l->p, "MOUNTPOINT", mountpoint, &path);
	if (err)
		return err;
	o->mountpoint = path_resolve(path);
	o->shown_source = without_secrets(o->remote ? o->remote : "none");
	return o->shown_source && o->mountpoint ? 0 : -ENOMEM;
}

static int finish_nvme(struct parse *p)
{
	if (p->o->nvme)
		return 0;
	p->o->nvme_is_default = true;
	p->o->nvme = default_nvme_dir(p->o->mountpoint);
	if (p->o->nvme)
		return 0;
	return parse_fail(p, "cannot tell where local state belongs: set "
			     "$HOME, or give nvme=DIR");
}

/* Bytes of the filesystem that path lies on, or would if it were there. */
static uint64_t filesystem_size(const char *path)
{
	CLEANUP(free_p) char *dir = strdup(path);
	struct statvfs st;
	char *slash;

	while (dir && *dir) {
		if (statvfs(dir, &st) == 0)
			return (uint64_t)st.f_blocks * st.f_frsize;
		slash = strrchr(dir, '/');
		if (!slash || slash == dir)
			break;
		*slash = '\0';
	}
	return statvfs("/", &st) == 0 ? (uint64_t)st.f_blocks * st.f_frsize : 0;
}

static int finish_nvme_size(struct parse *p)
{
	int err;

	if (!p->nvme_size)
		return 0;
	err = parse_size(p, "nvme_size", p->nvme_size,
			 filesystem_size(p->o->nvme), &p->o->nvme_size);
	if (!err && p->o->nvme_size < NVME_MIN)
		return parse_fail(p,
				  "nvme_size=%s is too small: give 64M or more",
				  p->nvme_size);
	return err;
}

/* mount(8) leaves out what holds for every other filesystem; libfuse would
 * take that for nosuid and nodev. Items that were given come behind. */
static int finish_kernel(struct options *o)
{
	char *all;

	if (!o->helper || geteuid() != 0)
		return 0;
	if (asprintf(&all, "suid,dev%s%s", o->kernel ? "," : "",
		     o->kernel ? o->kernel : "") < 0)
		return -ENOMEM;
	free(o->kernel);
	o->kernel = all;
	return 0;
}

static int finish(struct line *l)
{
	struct options *o = l->p.o;
	int err;

	if (!l->n_places)
		return parse_fail(&l->p, "no mount point given: ckptfs "
					 "[SOURCE] MOUNTPOINT (see --help)");
	err = finish_places(l);
	if (!err)
		err = finish_nvme(&l->p);
	if (!err)
		err = finish_nvme_size(&l->p);
	if (!err)
		err = finish_kernel(o);
	if (err)
		return err;
	if (!o->dram_given)
		o->dram = memory_size() / 4;
	if (!l->p.reserve_given)
		o->reserve = o->dram_given;
	if (o->fsync == LEVEL_REMOTE && !o->remote)
		return parse_fail(&l->p, "fsync=remote without a remote: give "
					 "remote= as well");
	return 0;
}

int options_parse(int argc, char **argv, struct options *out, char *why,
		  size_t why_len)
{
	const char *slash = argc ? strrchr(argv[0], '/') : NULL;
	const char *name = slash ? slash + 1 : argc ? argv[0] : "";
	struct line l = {
		.p = { .o = out, .why = why, .why_len = why_len },
		.argc = argc,
		.argv = argv,
		.next = 1,
	};
	int err;

	*out = (struct options){ .fsync = LEVEL_NVME,
				 .helper = strncmp(name, "mount.", 6) == 0,
				 .allow_other = geteuid() == 0 };
	err = take_all(&l);
	if (!err && out->mode < RUN_HELP)
		err = finish(&l);
	free(l.p.nvme_size);
	if (err == -ENOMEM)
		snprintf(why, why_len, "out of memory");
	return err;
}

void options_fini(struct options *o)
{
	free(o->shown_source);
	free(o->mountpoint);
	free(o->nvme);
	free(o->remote);
	free(o->log);
	free(o->faulty);
	free(o->kernel);
}
