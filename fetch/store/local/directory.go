package local

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"bowstring/schema"
	"bowstring/spill/segment"
)

const (
	formatFile   = "FORMAT"
	formatTemp   = "FORMAT.tmp"
	lockFile     = "LOCK"
	pebbleDir    = "pebble"
	segmentsDir  = "segments"
	formatName   = "bowstring-local"
	formatNumber = 2
)

// format is the content of the file FORMAT.
type format struct {
	Format  string `json:"format"`
	Version int    `json:"version"`
}

// checkDirectory reports whether dir holds a store with its database, and refuses a
// directory that is neither one nor empty. It changes nothing.
func checkDirectory(dir string) (exists bool, err error) {
	if exists, err = checkFormat(dir); err != nil || !exists {
		return exists, err
	}
	// Without its catalog every segment would count as unknown.
	if _, err := os.Stat(filepath.Join(dir, pebbleDir)); errors.Is(err, fs.ErrNotExist) {
		ids, err := segment.List(filepath.Join(dir, segmentsDir))
		if err == nil && len(ids) > 0 {
			return false, fmt.Errorf("%w: the store in %s has %d segments and no catalog: %s is missing; bowstring "+
				"store rebuild makes it anew",
				schema.ErrDataLoss, dir, len(ids), pebbleDir)
		}
	}
	return true, nil
}

// checkFormat reports whether dir holds a store, of this format.
func checkFormat(dir string) (exists bool, err error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	} else if err != nil {
		return false, err
	}
	data, err := os.ReadFile(filepath.Join(dir, formatFile))
	if errors.Is(err, fs.ErrNotExist) {
		for _, e := range entries {
			// What the making of a store may have left when it was killed.
			if !slices.Contains([]string{lockFile, formatTemp, "lost+found"}, e.Name()) {
				return false, fmt.Errorf("%w: %s is not a Bowstring store: it has no file %s, and it is not empty "+
					"(%s); name another directory",
					schema.ErrInvalid, dir, formatFile, e.Name())
			}
		}
		return false, nil
	} else if err != nil {
		return false, err
	}
	var f format
	if err := json.Unmarshal(data, &f); err != nil || f.Format != formatName {
		return false, fmt.Errorf("%w: %s is not a Bowstring store: its file %s does not say {\"format\":%q,…}",
			schema.ErrInvalid, dir, formatFile, formatName)
	}
	if f.Version != formatNumber {
		return false, fmt.Errorf("%w: the store in %s has format version %d, this program reads version %d; use the "+
			"release of Bowstring that wrote it, or a newer one",
			schema.ErrInvalid, dir, f.Version, formatNumber)
	}
	return true, nil
}

// createDirectory makes an empty directory a store. FORMAT comes first: a
// directory without it is never taken for a store.
func createDirectory(dir string) error {
	data, err := json.Marshal(format{formatName, formatNumber})
	if err != nil {
		return err
	}
	temp := filepath.Join(dir, formatTemp)
	f, err := os.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(append(data, '\n'))
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := os.Rename(temp, filepath.Join(dir, formatFile)); err != nil {
		return err
	}
	if err := os.Mkdir(filepath.Join(dir, segmentsDir), 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return segment.SyncDir(dir)
}
