/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Values of options: sizes, paths, remotes, and what they default to.
 */
#include <ctype.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "fs/options_parts.h"

int parse_fail(struct parse *p, const char *fmt, ...)
{
	va_list args;

	va_start(args, fmt);
	vsnprintf(p->why, p->why_len, fmt, args);
	va_end(args);
	return -EINVAL;
}

static int no_memory(struct parse *p)
{
	(void)parse_fail(p, "out of memory");
	return -ENOMEM;
}

/* ---- sizes ------------------------------------------------------------ */

/* "G", "GB", "GiB": all powers of 1024. -1: no unit. */
static int unit_shift(const char *s)
{
	static const char units[] = "KMGTP";
	const char *u;

	if (!*s || strcasecmp(s, "B") == 0)
		return 0;
	u = strchr(units, toupper((unsigned char)*s));
	if (!u || (s[1] && strcasecmp(s + 1, "B") != 0 &&
		   strcasecmp(s + 1, "iB") != 0))
		return -1;
	return (int)(u - units + 1) * 10;
}

/* Digits with at most one point. strtod() would take hex, inf, a sign. */
static size_t number_len(const char *s)
{
	size_t n = strspn(s, "0123456789");

	if (n && s[n] == '.')
		n += 1 + strspn(s + n + 1, "0123456789");
	return n;
}

int size_parse(const char *s, uint64_t whole, uint64_t *out)
{
	size_t len = number_len(s);
	long double n;
	int shift = 0;

	if (!len || len > 30)
		return -EINVAL;
	n = strtold(s, NULL);
	if (strcmp(s + len, "%") == 0) {
		if (!whole || n > 100)
			return -EINVAL;
		*out = (uint64_t)(n / 100 * (long double)whole);
		return 0;
	}
	shift = unit_shift(s + len);
	if (shift < 0)
		return -EINVAL;
	n *= (long double)(UINT64_C(1) << shift);
	if (n > (long double)INT64_MAX)
		return -ERANGE;
	*out = (uint64_t)n;
	return 0;
}

int parse_size(struct parse *p, const char *name, const char *value,
	       uint64_t whole, uint64_t *out)
{
	if (!size_parse(value, whole, out))
		return 0;
	return parse_fail(p, "%s=%s is not a size: write %s", name, value,
			  whole ? "64G, 512M or 25%" : "2G or 512M");
}

/* ---- strings and paths ------------------------------------------------ */

int parse_string(struct parse *p, const char *value, char **out)
{
	free(*out);
	*out = strdup(value);
	return *out ? 0 : no_memory(p);
}

int path_absolute(const char *path, char **out)
{
	CLEANUP(free_p) char *cwd = NULL;

	if (*path == '/') {
		*out = strdup(path);
		return *out ? 0 : -ENOMEM;
	}
	cwd = getcwd(NULL, 0);
	if (!cwd)
		return -errno;
	return asprintf(out, "%s/%s", cwd, path) < 0 ? -ENOMEM : 0;
}

/*
 * As the kernel will name it in /proc/mounts. A dead mount cannot be
 * resolved, but its parent can; one that is not there at all is left as it
 * is, for whoever tells of it.
 */
char *path_resolve(const char *path)
{
	CLEANUP(free_p) char *copy = strdup(path);
	CLEANUP(free_p) char *parent = NULL;
	char *whole, *slash;
	size_t len;

	if (!copy)
		return NULL;
	for (len = strlen(copy); len > 1 && copy[len - 1] == '/'; len--)
		copy[len - 1] = '\0';
	whole = realpath(copy, NULL);
	if (whole)
		return whole;
	slash = strrchr(copy, '/');
	if (!slash || slash == copy)
		return MOVE(copy);
	*slash = '\0';
	parent = realpath(copy, NULL);
	if (asprintf(&whole, "%s/%s", parent ? parent : copy, slash + 1) < 0)
		return NULL;
	return whole;
}

int parse_path(struct parse *p, const char *name, const char *value, char **out)
{
	char *path = NULL;
	int err;

	if (!*value)
		return parse_fail(p, "option '%s=' wants a path", name);
	err = path_absolute(value, &path);
	if (err == -ENOMEM)
		return no_memory(p);
	if (err)
		return parse_fail(p,
				  "%s=%s: cannot tell the working "
				  "directory; give an absolute path",
				  name, value);
	free(*out);
	*out = path;
	return 0;
}

int parse_for_kernel(struct parse *p, const char *item)
{
	char *longer;

	if (!p->o->kernel)
		return parse_string(p, item, &p->o->kernel);
	if (asprintf(&longer, "%s,%s", p->o->kernel, item) < 0)
		return no_memory(p);
	free(p->o->kernel);
	p->o->kernel = longer;
	return 0;
}

/* ---- the remote ------------------------------------------------------- */

char *without_secrets(const char *spec)
{
	const char *host = strstr(spec, "://");
	const char *at;
	size_t len = strlen(spec);
	char *out;

	if (!host)
		return strdup(spec);
	host += 3;
	len = strcspn(spec, "?#");
	at = memrchr(host, '@', strcspn(host, "/?#"));
	if (at)
		at++;
	else
		at = host;
	if (asprintf(&out, "%.*s%.*s", (int)(host - spec), spec,
		     (int)(spec + len - at), at) < 0)
		return NULL;
	return out;
}

static int check_remote(struct parse *p, const char *where, const char *value)
{
	CLEANUP(free_p) char *plain = without_secrets(value);

	if (!plain)
		return no_memory(p);
	if (strcmp(plain, value) != 0)
		return parse_fail(p,
				  "%s%s: keys do not belong on the command "
				  "line, where others read them; put them "
				  "into the environment",
				  where, plain);
	if (strncmp(value, "dir:", 4) == 0 && value[4] != '/')
		return parse_fail(p, "%s%s: give an absolute path, dir:/PATH",
				  where, value);
	if (*value != '/' && !strchr(value, ':'))
		return parse_fail(p,
				  "%s%s: not a remote; write dir:/PATH, or "
				  "none",
				  where, value);
	return 0;
}

int parse_remote(struct parse *p, const char *where, const char *value)
{
	int err;

	if (strcmp(value, "none") == 0)
		return 0;
	err = check_remote(p, where, value);
	if (err)
		return err;
	if (p->o->remote && strcmp(p->o->remote, value) != 0)
		return parse_fail(p,
				  "two remotes are given, '%s' and '%s': "
				  "give one",
				  p->o->remote, value);
	return parse_string(p, value, &p->o->remote);
}
