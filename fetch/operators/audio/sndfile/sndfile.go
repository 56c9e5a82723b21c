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
	"errors"
	"os"
	"sync"
	"time"
)

// Library is the environment variable that names libsndfile's shared library, or is
// "auto" for the system's.
const Library = "BOWSTRING_LIBSNDFILE"

// Command is the one argument by which the binary is a process that decodes: it then calls [Serve].
const Command = "decode-sound"

// What is wrong with a file, by what the library says.
var (
	ErrNotOpened = errors.New("libsndfile does not open it")
	ErrOther     = errors.New("libsndfile finds other channels, or another rate, than its header says")
	ErrNoSeek    = errors.New("libsndfile does not find the sample that is asked for")
	// ErrDied says that the process did not survive the file, twice, or took too long.
	ErrDied = errors.New("libsndfile did not survive it")
)

// The library's version in the server's processes, or why there is none.
var (
	processes = &pool{patience: 30 * time.Second}
	loaded    = sync.OnceValues(func() (string, string) {
		path := os.Getenv(Library)
		switch {
		case noLibrary != "":
			return "", noLibrary
		case path == "":
			return "", "is loaded where " + Library + " names it, or is auto"
		case path == "auto":
			path = "libsndfile.so.1"
		}
		processes.library = path
		return processes.version()
	})
)

// Version is the library's, as "libsndfile-1.2.2", or empty; then missing says why. The first call starts a process.
func Version() (version, missing string) { return loaded() }

// Decode reads frames from offset on into out, one slice for each channel, all of one length, and gives how
// many there were and what processor time the other process took. It is safe for concurrent
// use; each call at a time has a process. Version has to have found the library.
func Decode(file []byte, rate, offset int, out [][]float32) (int, time.Duration, error) {
	return processes.decode(file, request{Offset: int64(offset), Rate: int64(rate)}, out)
}
