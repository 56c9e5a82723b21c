// A library with libsndfile's names that does with a file what the file's text says:
//   CRASH        ends by SIGSEGV
//   ONCE PATH    ends by SIGKILL in the middle of the file, unless PATH exists, which it makes
//   HANG         does not end
//   HANG PATH    makes PATH, and does not end
// Anything else has one channel at 16000 a second, of the bytes as samples.
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

typedef struct { int64_t frames; int samplerate, channels, format, sections, seekable; } sf_info;
typedef struct { int64_t (*length)(void *), (*seek)(int64_t, int, void *), (*read)(void *, int64_t, void *); } sf_io;

static char text[1 << 16];
static int64_t size, at;

void *sf_open_virtual(sf_io *io, int mode, sf_info *info, void *user) {
	size = io->read(text, sizeof text - 1, user);
	text[size] = at = 0;
	if (size < 4) return 0;
	info->channels = 1;
	info->samplerate = 16000;
	return text;
}

int64_t sf_readf_float(void *file, float *out, int64_t frames) {
	if (!strcmp(text, "CRASH")) *(volatile int *)8 = 1;
	if (!strncmp(text, "ONCE ", 5)) {
		int fd = open(text + 5, O_CREAT | O_EXCL, 0600);
		if (fd >= 0) kill(getpid(), SIGKILL);
	}
	if (!strncmp(text, "HANG ", 5)) close(open(text + 5, O_CREAT, 0600));
	while (!strncmp(text, "HANG", 4)) pause();
	int64_t n = 0;
	for (; n < frames && at < size; n++) out[n] = text[at++] / 128.0f;
	return n;
}

int64_t sf_seek(void *file, int64_t to, int whence) { return to > size ? -1 : (at = to); }
int sf_close(void *file) { return 0; }
const char *sf_version_string(void) { return "bad-1"; }
