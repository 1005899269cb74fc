# SPDX-License-Identifier: Apache-2.0
"""What the tests' conftest.py files share: fixtures that mount, the switch to
an ordinary user, a watchdog for what hangs, exit code 77 where all is skipped.

    mode    each of modes(); `@pytest.mark.modes("served")` for fewer
    m       a mount that the tests of one file share, one for each mode
    d       a fresh directory in it
    fresh   a function that mounts one more: fresh(dram="64M", remote=True)
"""
import faulthandler
import os
import pathlib
import signal
import sys
import tempfile
import threading

import pytest

import mounted
import user

user.keep_root()


def open_fuse_to_all():
    """As udev does it everywhere; a bare devtmpfs has it for root only."""
    if os.geteuid() == 0 and os.path.exists("/dev/fuse"):
        if os.stat("/dev/fuse").st_mode & 0o006 != 0o006:
            os.chmod("/dev/fuse", 0o666)


open_fuse_to_all()


def pytest_configure(config):
    # Whoever ends us gets a clean end: fixtures unmount.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    config.addinivalue_line("markers", "modes(*names): run in these modes only")
    config.addinivalue_line("markers", "root: root's rights are needed")
    config.addinivalue_line("markers", "limit(s): seconds before the watchdog")


def _modes(metafunc):
    marks = metafunc.definition.get_closest_marker("modes")
    have = mounted.modes()
    if marks:
        # An ordinary user's `served` is what root calls `user`.
        same = {"user": "served"} if os.geteuid() else {}
        have = [m for m in have if same.get(m, m) in marks.args
                or m in marks.args
                or m == "plain" and set(marks.args) - {"user"}]
    if metafunc.definition.get_closest_marker("root"):
        have = [m for m in have if m != "user" and not os.geteuid()]
    return have


def pytest_generate_tests(metafunc):
    if "mode" in metafunc.fixturenames:
        metafunc.parametrize("mode", _modes(metafunc), scope="module",
                             indirect=True)


@pytest.fixture(scope="module")
def mode(request):
    return request.param


def as_mode(mode, function):
    if mode == "user" and os.geteuid() == 0:
        return user.in_user_thread(function)
    return function()


@pytest.fixture(scope="module")
def shared(mode, request):
    """The mount that m checks before each test."""
    options = getattr(request.module, "OPTIONS", {})
    one = mounted.Mounted(mode, **options)
    try:
        one.start()
        yield one
    finally:
        one.close()


@pytest.fixture
def m(shared):
    if not shared.alive() or not _answers(shared):
        shared.abort()
        if shared.process:
            shared.process.wait()
        shared.unmount(lazy=True, check=False)
        shared.start()
    return shared


def _answers(one):
    try:
        as_mode(one.mode, lambda: os.listdir(one.path))
        return True
    except OSError:
        return False


@pytest.fixture
def d(m, request):
    name = "".join(c if c.isalnum() else "-" for c in request.node.name)[:80]
    path = m.path / name
    n = 0
    while _exists(m, path):
        n += 1
        path = m.path / f"{name}.{n}"
    as_mode(m.mode, lambda: path.mkdir(mode=0o755))
    return path


def _exists(m, path):
    return as_mode(m.mode, lambda: os.path.lexists(path))


@pytest.fixture
def has_remote(mode):
    if mode == "plain":
        pytest.skip("a plain directory has no remote")


@pytest.fixture
def fresh(mode, request):
    made = []

    def mount(**options):
        one = mounted.Mounted(mode, **options)
        made.append(one)
        return one.start()

    yield mount
    trouble = []
    for one in reversed(made):
        try:
            one.close()
        except AssertionError as e:
            trouble.append(str(e))
    assert not trouble, "\n".join(trouble)


@pytest.fixture
def plain(mode):
    """An ordinary directory, not on the mount."""
    path = pathlib.Path(tempfile.mkdtemp(prefix="ckptfs-test-plain-",
                                         dir=mounted.TEST_DIR))
    if mode == "user" and os.geteuid() == 0:
        os.chown(path, user.UID, user.GID)
    yield path
    mounted.drop(path)


class Watchdog:
    """Aborts all mounts when a test takes too long, so that it fails; ends
    the run if it hangs even then."""
    GRACE = 60

    def __init__(self, seconds):
        self.timer = threading.Timer(seconds * mounted.PATIENCE, self.bark)
        self.hard = threading.Timer(
            seconds * mounted.PATIENCE + self.GRACE, self.bite)
        for timer in (self.timer, self.hard):
            timer.daemon = True
        self.barked = False

    @staticmethod
    def bite():
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    def bark(self):
        self.barked = True
        faulthandler.dump_traceback(all_threads=True, file=sys.__stderr__)
        for one in list(mounted.Mounted.live):
            one.abort()

    def __enter__(self):
        self.timer.start()
        self.hard.start()
        return self

    def __exit__(self, *_):
        self.timer.cancel()
        self.hard.cancel()


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem):
    arguments = {name: pyfuncitem.funcargs[name]
                 for name in pyfuncitem._fixtureinfo.argnames}
    limit = pyfuncitem.get_closest_marker("limit")
    call = getattr(pyfuncitem, "callspec", None)
    mode = call.params.get("mode") if call else None

    with Watchdog(limit.args[0] if limit else 100) as dog:
        try:
            as_mode(mode, lambda: pyfuncitem.obj(**arguments))
        except BaseException as e:
            if dog.barked:
                e.add_note("the watchdog aborted the mount: it took too long")
            raise
        assert not dog.barked, "it took too long: the mount was aborted"
    return True


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    outcome = yield
    report = outcome.get_result()
    if report.failed:
        for one in mounted.Mounted.live:
            report.sections.append((f"log of {one.path}", one.log_tail()))


def pytest_sessionfinish(session, exitstatus):
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    stats = reporter.stats if reporter else {}
    if exitstatus in (0, 5) and not stats.get("passed"):
        session.exitstatus = 77
