//go:build cgo && linux

package sndfile

/*
#cgo LDFLAGS: -ldl
#include <dlfcn.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

// The used parts of sndfile.h, which have not changed since version 1.0.0. The library is
// loaded at run time, so that no build needs it.
typedef struct { int64_t frames; int samplerate, channels, format, sections, seekable; } sf_info;
typedef struct {
	int64_t (*length)(void *);
	int64_t (*seek)(int64_t, int, void *);
	int64_t (*read)(void *, int64_t, void *);
	int64_t (*write)(const void *, int64_t, void *);
	int64_t (*position)(void *);
} sf_io;
static void *(*sf_open)(sf_io *, int, sf_info *, void *);
static int64_t (*sf_read)(void *, float *, int64_t);
static int64_t (*sf_seek)(void *, int64_t, int);
static int (*sf_close)(void *);
static const char *(*sf_version)(void);

static const char *snd_load(const char *path) {
	void *lib = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	if (!lib) return dlerror();
	*(void **)&sf_open = dlsym(lib, "sf_open_virtual");
	*(void **)&sf_read = dlsym(lib, "sf_readf_float");
	*(void **)&sf_seek = dlsym(lib, "sf_seek");
	*(void **)&sf_close = dlsym(lib, "sf_close");
	*(void **)&sf_version = dlsym(lib, "sf_version_string");
	return sf_open && sf_read && sf_seek && sf_close && sf_version ? NULL : "it lacks functions of libsndfile";
}
static const char *snd_version(void) { return sf_version(); }

typedef struct { const char *p; int64_t n, at; } memory;
static int64_t m_length(void *u) { return ((memory *)u)->n; }
static int64_t m_position(void *u) { return ((memory *)u)->at; }
static int64_t m_write(const void *d, int64_t n, void *u) { return 0; }
static int64_t m_seek(int64_t by, int whence, void *u) {
	memory *m = u;
	int64_t from = whence == 0 ? 0 : whence == 1 ? m->at : m->n, to;
	if (__builtin_add_overflow(from, by, &to) || to < 0 || to > m->n) return -1;
	return m->at = to;
}
static int64_t m_read(void *d, int64_t n, void *u) {
	memory *m = u;
	if (n > m->n - m->at) n = m->n - m->at;
	if (n <= 0) return 0;
	memcpy(d, m->p + m->at, n);
	m->at += n;
	return n;
}

// snd_decode gives how many frames it read, or below zero: -1 not opened, -2 other channels or rate, -3 no seek.
static int64_t snd_decode(const char *p, int64_t n, int channels, int rate, int64_t offset, float *out, int64_t frames) {
	memory m = {p, n, 0};
	sf_io io = {m_length, m_seek, m_read, m_write, m_position};
	sf_info info;
	memset(&info, 0, sizeof info);
	void *f = sf_open(&io, 0x10, &info, &m);
	if (!f) return -1;
	int64_t got;
	if (info.channels != channels || info.samplerate != rate) got = -2;
	else if (offset > 0 && sf_seek(f, offset, 0) != offset) got = -3;
	else got = sf_read(f, out, frames);
	sf_close(f);
	return got;
}
*/
import "C"

import (
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// noLibrary is why this build cannot load the library; "" if it can.
const noLibrary = ""

// sndfile is the loaded library. It has no state: each call opens and closes a file.
type sndfile struct{ name string }

// load opens the shared library, or says why it cannot.
func load(path string) (library, string) {
	name := C.CString(path)
	defer C.free(unsafe.Pointer(name))
	if why := C.snd_load(name); why != nil {
		return nil, "cannot be loaded: " + C.GoString(why)
	}
	return sndfile{C.GoString(C.snd_version())}, ""
}

// version implements library.
func (s sndfile) version() string { return s.name }

// read implements library.
func (s sndfile) read(file []byte, q request, out []float32) int64 {
	if len(file) == 0 || len(out) == 0 {
		return notOpened
	}
	return int64(C.snd_decode((*C.char)(unsafe.Pointer(&file[0])), C.int64_t(len(file)), C.int(q.Channels),
		C.int(q.Rate),
		C.int64_t(q.Offset), (*C.float)(unsafe.Pointer(&out[0])), C.int64_t(q.Frames)))
}

// confine makes this process the first victim of the kernel's out-of-memory killer, and
// disables core dumps. Failures are ignored.
func confine() {
	_ = os.WriteFile("/proc/self/oom_score_adj", []byte("1000"), 0)
	_ = unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{})
}
