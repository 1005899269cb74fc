/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How ckptctl writes sizes, names and a progress bar.
 */
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "fs/ckptctl.h"

const char *ctl_bytes(uint64_t n, char *buf)
{
	static const char units[] = "KMGTPE";
	double x = (double)n / 1024;
	int u = 0;

	if (n < 1024) {
		snprintf(buf, CTL_BYTES_LEN, "%u B", (unsigned)n);
		return buf;
	}
	for (; x >= 999.5 && u < 5; u++)
		x /= 1024;
	snprintf(buf, CTL_BYTES_LEN, x < 9.95 ? "%.1f %ciB" : "%.0f %ciB", x,
		 units[u]);
	return buf;
}

static int terminal_width(void)
{
	struct winsize ws;

	if (ioctl(STDERR_FILENO, TIOCGWINSZ, &ws) || ws.ws_col < 40)
		return 80;
	return ws.ws_col;
}

void ctl_bar_draw(const char *what, uint64_t behind, uint64_t most,
		  double elapsed_s)
{
	int width = terminal_width() - 45, full;
	double part = most ? 1 - (double)behind / (double)most : 0;
	char left[CTL_BYTES_LEN];

	width = width < 10 ? 10 : width > 50 ? 50 : width;
	full = (int)(part * width);
	fprintf(stderr, "\r%-6s [", what);
	for (int i = 0; i < width; i++)
		fputc(i < full ? '#' : '.', stderr);
	fprintf(stderr, "] %3d%%  %s left, %.0f s\033[K", (int)(part * 100),
		ctl_bytes(behind, left), elapsed_s);
	fflush(stderr);
}

void ctl_bar_clear(void)
{
	fputs("\r\033[K", stderr);
	fflush(stderr);
}

void ctl_print_name(const char *name)
{
	for (; *name; name++)
		putchar((unsigned char)*name < ' ' || *name == 0x7f ? '?'
								    : *name);
}

void ctl_make_utf8(char *name)
{
	json_t *fits = json_string(name);

	for (; !fits && *name; name++)
		if ((unsigned char)*name >= 0x80)
			*name = '?';
	json_decref(fits);
}

json_t *ctl_json_name(const char *name)
{
	CLEANUP(free_p) char *copy = strdup(name);

	if (!copy)
		return NULL;
	ctl_make_utf8(copy);
	return json_string(copy);
}
