package backup_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"bowstring/fetch/store/backup"
)

// TestDiskFull: a backup that finds no space fails, leaves none of it taken, and keeps what is whole; once there is
// space the next one is whole.
func TestDiskFull(t *testing.T) {
	disk := t.TempDir()
	if err := unix.Mount("tmpfs", disk, "tmpfs", 0, "size=1m"); err != nil {
		t.Skip("mounting needs rights: ", err)
	}
	t.Cleanup(func() { must(t, unix.Unmount(disk, 0)) })
	s, dir := open(t), filepath.Join(disk, "backup")
	rows := blobs(8, 700) // about 1 MB
	commit(t, s, "d", rows[:100])
	_, err := backup.Write(t.Context(), dir, scopeOf(t, s), backup.Options{})
	must(t, err)
	first := openGeneration(t, dir, 1)
	commit(t, s, "d", rows)
	used := func() int64 {
		var st unix.Statfs_t
		must(t, unix.Statfs(disk, &st))
		return int64(st.Blocks-st.Bfree) * st.Bsize
	}
	before := used()
	for _, pack := range []int64{1 << 30, 100_000} {
		if _, err := backup.Write(t.Context(), dir, scopeOf(t, s), backup.Options{PackBytes: pack}); !errors.Is(err,
			unix.ENOSPC) {
			t.Fatalf("packs of %d: %v", pack, err)
		}
		if taken := used() - before; pack > 1<<20 && taken > 64<<10 {
			t.Errorf("packs of %d: the backup that failed takes %d bytes", pack, taken)
		}
		if list, err := backup.List(dir); err != nil || len(list) != 1 {
			t.Errorf("packs of %d: generations %v, %v", pack, list, err)
		}
		restore(t, first, s)
	}
	must(t, unix.Mount("tmpfs", disk, "tmpfs", unix.MS_REMOUNT, "size=8m"))
	_, err = backup.Write(t.Context(), dir, scopeOf(t, s), backup.Options{})
	must(t, err)
	restore(t, openGeneration(t, dir, 2), s)
}

// TestKilledWhileRenaming: files that were to be renamed when a writer was killed, of which the first lies where there
// is no backup yet, are in nobody's way, and go.
func TestKilledWhileRenaming(t *testing.T) {
	s, dir := open(t), t.TempDir()
	commit(t, s, "d", blobs(9, 3))
	for _, names := range [][]string{
		{".BACKUP8231", "LOCK"},
		{".BACKUP77", "generations/.00000002.json4711", "generations/.00000002.json.sha2561",
			"packs/.00000002.index99"},
	} {
		for _, name := range names {
			must(t, os.WriteFile(filepath.Join(dir, name), []byte("half"), 0o600))
		}
		_, err := backup.Write(t.Context(), dir, scopeOf(t, s), backup.Options{})
		must(t, err)
		for _, name := range names {
			if _, err := os.Stat(filepath.Join(dir, name)); name != "LOCK" && !errors.Is(err, os.ErrNotExist) {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
	restore(t, openGeneration(t, dir, 0), s)
}
