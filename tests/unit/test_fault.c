/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A fault point fails at the pass that the environment names, once; it kills
 * where it was told to; a build without them knows nothing of either.
 */
#include <errno.h>
#include <signal.h>
#include <sys/wait.h>

#include "metadata/fault.h"

#include "check.h"

struct expect {
	const char *arming; /* NULL: none */
	int results[5];     /* of a, b, a, deadly, b */
	int killed_at;      /* which of the five, or 0 */
};

static const struct expect cases[] = {
	{ NULL, { 0 }, 0 },
	{ "", { 0 }, 0 },
	{ "log", { 0 }, 0 },
	{ "1", { -EIO }, 0 },
	{ "3", { 0, 0, -EIO }, 0 },
	{ "4", { 0, 0, 0, 0, -ENOSPC }, 0 },
	{ "5", { 0 }, 0 },
	{ "a", { -EIO }, 0 },
	{ "a:2", { 0, 0, -EIO }, 0 },
	{ "b:2", { 0, 0, 0, 0, -ENOSPC }, 0 },
	{ "c", { 0 }, 0 },
	{ "deadly", { 0 }, 0 },
	{ "2:kill", { 0 }, 2 },
	{ "4:kill", { 0 }, 4 },
	{ "a:2:kill", { 0 }, 3 },
	{ "deadly:kill", { 0 }, 4 },
};

/* In a process of its own: what was armed once stays. */
static int run(const struct expect *x)
{
	int got[5];

	if (x->arming)
		setenv("CKPTFS_FAULT", x->arming, 1);
	got[0] = FAULT("a", -EIO);
	got[1] = FAULT("b", -ENOSPC);
	got[2] = FAULT("a", -EIO);
	got[3] = FAULT("deadly", 0);
	got[4] = FAULT("b", -ENOSPC);
	return memcmp(got, x->results, sizeof(got)) != 0;
}

static void one(const struct expect *x)
{
	int status;
	pid_t pid = fork();

	CHECK(pid >= 0);
	if (!pid)
		_exit(run(x));
	CHECK_EQ(waitpid(pid, &status, 0), pid);
	if (x->killed_at)
		CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
	else
		CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

int main(void)
{
	unsetenv("CKPTFS_FAULT");
	if (!fault_is_built()) {
		CHECK_EQ(FAULT("a", -EIO), 0);
		printf("no fault points in this build\n");
		return 77;
	}
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
		one(&cases[i]);
	return 0;
}
