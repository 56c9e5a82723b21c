// Package sndfile reads files of sound by libsndfile, in processes of their own.
//
// The library is C, and reads whatever bytes there are. So it is loaded only where the
// environment names it ([Library]), and never into the process that serves: that starts its
// own binary again with [Command] for an argument, and sends it files through a pipe. A file
// that ends such a process, or holds it for too long, is a damaged sample; the next one gets
// a new process. Processes keep to themselves what the server knows: they get neither its
// environment nor its files. They are no sandbox: they run as the same user.
//
// The package knows nothing of headers and formats. It starts no goroutine but in such a process.
package sndfile

import (
	"context"
	"errors"
	"os"
	"time"
)

// Library is the environment variable that names libsndfile's shared library, or is
// "auto" for the system's.
const Library = "BOWSTRING_LIBSNDFILE"

// theirs is the variable by which a process that decodes is told of the library. It is not Library: a binary that
// knows no Command, such as another package's tests, would otherwise start itself again, and again.
const theirs = "BOWSTRING_DECODE_SOUND_BY"

// Command is the one argument by which the binary is a process that decodes: it then calls [Serve].
const Command = "decode-sound"

// What is wrong with a file, by what the library says.
var (
	ErrNotOpened = errors.New("libsndfile does not open it")
	ErrOther     = errors.New("libsndfile finds other channels, or another rate, than its header says")
	ErrNoSeek    = errors.New("libsndfile does not find the sample that is asked for")
	// ErrDied says that the process did not survive the file, twice, or took too long.
	ErrDied = errors.New("libsndfile did not survive it")
	// ErrNoProcess is no file's fault: no process could be started. It may pass.
	ErrNoProcess = errors.New("libsndfile's process could not be started")
)

// processes are those of the server.
var processes = &pool{library: named(), patience: 30 * time.Second}

// named is the library that the environment names, or empty.
func named() string {
	if path := os.Getenv(Library); path != "auto" {
		return path
	}
	return "libsndfile.so.1"
}

// Version is the library's, as "libsndfile-1.2.2", or empty; then missing says why. The first call starts a process.
// What it finds is kept; ErrNoProcess is not, and the next call tries again.
func Version() (version, missing string, err error) {
	switch {
	case noLibrary != "":
		return "", noLibrary, nil
	case processes.library == "":
		return "", "is loaded where " + Library + " names it, or is auto", nil
	}
	return processes.version()
}

// Decode reads frames from offset on into out, one slice for each channel, all of one length, and gives how
// many there were and what processor time the other process took. When ctx ends, so do the call, with its cause, and the
// process. It is safe for concurrent
// use; each call at a time has a process. Version has to have found the library. An error is the file's
// fault, but for ErrNoProcess.
func Decode(ctx context.Context, file []byte, rate, offset int, out [][]float32) (int, time.Duration, error) {
	return processes.decode(ctx, file, request{Offset: int64(offset), Rate: int64(rate)}, out)
}
