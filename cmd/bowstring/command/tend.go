package command

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"

	"bowstring/schema"
	"bowstring/spill"
)

// openIdleSpill opens a spill that no server has, and takes nothing out of it to make room.
func openIdleSpill(dir string, log *slog.Logger) (*spill.Cache, error) {
	if _, err := os.Stat(filepath.Join(dir, "FORMAT")); err != nil {
		return nil, fmt.Errorf("%w: there is no spill in %s", schema.ErrNotFound, dir)
	}
	return spill.Open(spill.Options{Dir: dir, Bytes: 1 << 60, KeepFree: 1, Logger: log})
}

// lowestPriority has the whole process run when nobody else wants the processor. The
// kernel keeps it by thread; those to come take it over. Where it cannot be had,
// nothing is lost but that.
func lowestPriority() {
	threads, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return
	}
	for _, t := range threads {
		if id, err := strconv.Atoi(t.Name()); err == nil {
			_ = unix.Setpriority(unix.PRIO_PROCESS, id, 19) // as said
		}
	}
}
