package scale

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/KimMachineGun/automemlimit/memlimit"
	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"
)

// Free returns a function that says how many bytes are free, for this process, on the file system that a directory is
// on.
func Free(dir string) func() (int64, error) {
	return func() (int64, error) {
		var st unix.Statfs_t
		if err := unix.Statfs(dir, &st); err != nil {
			return 0, &os.PathError{Op: "statfs", Path: dir, Err: err}
		}
		return int64(st.Bavail) * st.Bsize, nil
	}
}

// Memory returns how many bytes of memory this process could still get, and how many there are: of the machine, or of
// its control group if that has less. Pages of files count as available, as they give way.
func Memory() (available, total int64, err error) {
	fs, err := procfs.NewDefaultFS()
	if err != nil {
		return 0, 0, err
	}
	m, err := fs.Meminfo()
	if err != nil {
		return 0, 0, err
	}
	if m.MemAvailableBytes == nil || m.MemTotalBytes == nil {
		return 0, 0, errors.New("/proc/meminfo does not say what is available")
	}
	available, total = int64(*m.MemAvailableBytes), int64(*m.MemTotalBytes)
	limit, err := memlimit.FromCgroup()
	if err != nil || limit >= uint64(total) {
		return available, total, nil //nolint:nilerr // no limit is no error
	}
	used, err := groupUses(fs)
	if err != nil {
		return 0, 0, fmt.Errorf("memory of the control group: %w", err)
	}
	return max(min(available, int64(limit)-used), 0), int64(limit), nil
}

// groupUses is what the control group of this process has taken and cannot give back at once.
func groupUses(fs procfs.FS) (int64, error) {
	self, err := fs.Self()
	if err != nil {
		return 0, err
	}
	groups, err := self.Cgroups()
	if err != nil {
		return 0, err
	}
	mounts, err := self.MountInfo()
	if err != nil {
		return 0, err
	}
	for _, m := range mounts {
		_, v1 := m.SuperOptions["memory"]
		if v1 = v1 && m.FSType == "cgroup"; !v1 && m.FSType != "cgroup2" {
			continue
		}
		for _, g := range groups {
			if v1 && !slices.Contains(g.Controllers, "memory") || !v1 && g.HierarchyID != 0 {
				continue
			}
			// In a container the mount may show the group as its root.
			below, err := filepath.Rel(m.Root, g.Path)
			if err != nil || strings.HasPrefix(below, "..") {
				below = "."
			}
			used, err := usesOf(filepath.Join(m.MountPoint, below), v1)
			if errors.Is(err, os.ErrNotExist) {
				continue // the other version has the memory
			}
			return used, err
		}
	}
	return 0, errors.New("no mounted control group has it")
}

// usesOf reads what a control group uses.
func usesOf(dir string, v1 bool) (used int64, err error) {
	file, prefix := "memory.current", ""
	if v1 {
		file, prefix = "memory.usage_in_bytes", "total_"
	}
	text, err := os.ReadFile(filepath.Join(dir, file))
	if err != nil {
		return 0, err
	}
	if _, err := fmt.Sscan(string(text), &used); err != nil {
		return 0, fmt.Errorf("%s: %w", filepath.Join(dir, file), err)
	}
	text, err = os.ReadFile(filepath.Join(dir, "memory.stat"))
	if err != nil {
		return 0, err
	}
	for r := strings.NewReader(string(text)); ; {
		var name string
		var bytes int64
		switch _, err := fmt.Fscan(r, &name, &bytes); {
		case errors.Is(err, io.EOF):
			return max(used, 0), nil
		case err != nil:
			return 0, fmt.Errorf("%s: %w", filepath.Join(dir, "memory.stat"), err)
		case name == prefix+"inactive_file" || name == prefix+"active_file":
			used -= bytes
		}
	}
}
