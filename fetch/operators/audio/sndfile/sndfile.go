// Package sndfile reads sound files with libsndfile, in separate processes.
//
// The library is C, and the files are untrusted. So it is loaded only if the environment
// names it ([Library]), and never into the serving process. The server starts its own
// binary again with the argument [Command], and sends it files through a pipe. A file
// that crashes such a process, or occupies it for too long, is a damaged sample; the next
// file gets a new process. The processes get neither the server's environment nor its
// open files. They are no sandbox: they run as the same user.
//
// The package knows nothing of headers and formats. It starts goroutines only in those
// processes.
package sndfile

import (
	"context"
	"errors"
	"os"
	"time"
)

// Library is the environment variable with the path of libsndfile's shared library, or
// "auto" for the system's.
const Library = "BOWSTRING_LIBSNDFILE"

// theirs is the variable that passes the library's path to a decoding process. It is not
// Library: a binary without Command, such as the tests of another package, would
// otherwise start itself again and again.
const theirs = "BOWSTRING_DECODE_SOUND_BY"

// Command is the argument of a decoding process, whose main function calls [Serve].
const Command = "decode-sound"

// Errors of a file, as the library reports them.
var (
	ErrNotOpened = errors.New("libsndfile does not open it")
	ErrOther     = errors.New("libsndfile finds other channels, or another rate, than its header says")
	ErrNoSeek    = errors.New("libsndfile does not find the sample that is asked for")
	// ErrDied: two processes died of the file, or one took too long.
	ErrDied = errors.New("libsndfile did not survive it")
	// ErrNoProcess is not the file's fault: no process could be started. It may be
	// temporary.
	ErrNoProcess = errors.New("libsndfile's process could not be started")
)

// processes are the server's decoding processes.
var processes = &pool{library: named(), patience: 30 * time.Second}

// named is the library that the environment names, or "".
func named() string {
	if path := os.Getenv(Library); path != "auto" {
		return path
	}
	return "libsndfile.so.1"
}

// Version is the library's version, such as "libsndfile-1.2.2", or ""; then missing says
// why. The first call starts a process. The result is cached, except ErrNoProcess: the
// next call tries again.
func Version() (version, missing string, err error) {
	switch {
	case noLibrary != "":
		return "", noLibrary, nil
	case processes.library == "":
		return "", "is loaded where " + Library + " names it, or is auto", nil
	}
	return processes.version()
}

// Decode reads frames from offset on into out, one slice for each channel, all of one
// length. It returns their number, and the CPU time of the decoding process. The end of
// ctx ends the call, with its cause, and the process. Decode is safe for concurrent use;
// each concurrent call has a process of its own. Version must have found the library. An
// error is the file's fault, except ErrNoProcess.
func Decode(ctx context.Context, file []byte, rate, offset int, out [][]float32) (int, time.Duration, error) {
	return processes.decode(ctx, file, request{Offset: int64(offset), Rate: int64(rate)}, out)
}
