package backup

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
)

// leftover is the name of a file that was to be renamed when its writer was killed.
var leftover = regexp.MustCompile(`^\.(BACKUP|[0-9]{8}\.(index|json|json\.sha256))[0-9]+$`)

// removeLeftovers removes what writers that were killed have left half written. The caller has the lock.
func removeLeftovers(dir string) error {
	for _, folder := range []string{dir, filepath.Join(dir, generationsDir), filepath.Join(dir, packsDir)} {
		entries, err := os.ReadDir(folder)
		if err != nil {
			return err
		}
		for _, e := range entries {
			if !leftover.MatchString(e.Name()) {
				continue
			}
			if err := os.Remove(filepath.Join(folder, e.Name())); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
	}
	return nil
}
