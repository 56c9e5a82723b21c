package backup

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/renameio/v2"

	"bowstring/fetch/store/tend"
	"bowstring/schema"
	"bowstring/spill/segment"
)

// Names in the directory.
const (
	formatFile     = "BACKUP"
	lockFile       = "LOCK"
	generationsDir = "generations"
	packsDir       = "packs"
	catalogSuffix  = ".json"
	sumSuffix      = ".json.sha256"
	tarSuffix      = ".tar"
	indexSuffix    = ".index"

	formatName    = "bowstring-backup"
	formatVersion = 1

	fileMode = 0o600 // what is in it is as secret as the store
	dirMode  = 0o700
)

type format struct {
	Format  string `json:"format"`
	Version int    `json:"version"`
}

// catalog is the file of a generation.
type catalog struct {
	format
	Generation int64     `json:"generation"`
	Created    time.Time `json:"created"`
	Store      string    `json:"store"`
	Blobs      int64     `json:"blobs"`
	Bytes      int64     `json:"bytes"`
	// Packs are those that have the blobs, by name.
	Packs      []string            `json:"packs"`
	Snapshots  []*schema.Snapshot  `json:"snapshots"`
	Selections []*schema.Selection `json:"selections"`
	// Numbering is of each dataset. Programs from before there were tags write none.
	Numbering []tend.Numbering `json:"numbering,omitempty"`
}

var packName = regexp.MustCompile(`^[0-9]{8}$`)

// parseCatalog reads a catalog and checks what can be checked without the packs.
func parseCatalog(data []byte) (*catalog, error) {
	var f format
	if err := json.Unmarshal(data, &f); err != nil {
		return nil, fmt.Errorf("%w: %w", schema.ErrDataLoss, err)
	}
	if f.Format != formatName || f.Version != formatVersion {
		return nil, fmt.Errorf("%w: format %q, version %d; this program reads %q, version %d",
			schema.ErrInvalid, f.Format, f.Version, formatName, formatVersion)
	}
	c := new(catalog)
	d := json.NewDecoder(bytes.NewReader(data))
	if err := d.Decode(c); err != nil {
		return nil, fmt.Errorf("%w: %w", schema.ErrDataLoss, err)
	}
	if err := c.check(); err != nil {
		return nil, fmt.Errorf("%w: %w", schema.ErrDataLoss, err)
	}
	return c, nil
}

func (c *catalog) check() error {
	if c.Generation < 1 {
		return fmt.Errorf("generation %d", c.Generation)
	}
	for _, name := range c.Packs {
		if !packName.MatchString(name) {
			return fmt.Errorf("a pack %q", name)
		}
	}
	var last *schema.Snapshot
	have := map[string]bool{}
	for _, snap := range c.Snapshots {
		if snap == nil {
			return errors.New("a snapshot that is null")
		}
		if err := schema.CheckName("dataset", snap.Dataset); err != nil {
			return err
		}
		if snap.Number < 1 || last != nil && (last.Dataset > snap.Dataset || last.Dataset == snap.Dataset &&
			last.Number >= snap.Number) {
			return fmt.Errorf("snapshot %s@%d is not where it belongs", snap.Dataset, snap.Number)
		}
		for i := range snap.Chunks {
			if ch := &snap.Chunks[i]; ch.Size < 0 || ch.Rows < 0 ||
				slices.ContainsFunc(ch.BlobBytes, func(n int64) bool { return n < 0 }) {
				return fmt.Errorf("chunk %d of %s@%d has a size below 0", i, snap.Dataset, snap.Number)
			}
		}
		have[snapshotName(snap.Dataset, snap.Number)], last = true, snap
	}
	for _, sel := range c.Selections {
		if sel == nil || !have[snapshotName(sel.Dataset, sel.Snapshot)] || sel.Bitmap.Size < 0 {
			return errors.New("a selection of no snapshot")
		}
	}
	for _, n := range c.Numbering {
		if n.Last < 0 {
			return fmt.Errorf("a last number %d of %q", n.Last, n.Dataset)
		}
		for _, tag := range n.Tags {
			if err := schema.CheckTag("tag", tag.Name); err != nil {
				return err
			}
			if !have[snapshotName(n.Dataset, tag.Snapshot)] {
				return fmt.Errorf("a tag %s of %s@%d, which is not there", tag.Name, n.Dataset, tag.Snapshot)
			}
		}
	}
	return nil
}

func snapshotName(dataset string, number int64) string {
	return dataset + "@" + strconv.FormatInt(number, 10)
}

func generationName(n int64) string { return fmt.Sprintf("%08d", n) }

// write writes the catalog, durably and at once, and before it what sha256sum -c checks it by.
func (c *catalog) write(dir string) error {
	data, err := json.MarshalIndent(c, "", " ")
	if err != nil {
		return err
	}
	data = append(data, '\n')
	name := generationName(c.Generation)
	folder := filepath.Join(dir, generationsDir)
	line := fmt.Sprintf("%x  %s\n", sha256.Sum256(data), name+catalogSuffix)
	if err := renameio.WriteFile(filepath.Join(folder, name+sumSuffix), []byte(line), fileMode); err != nil {
		return err
	}
	if err := segment.SyncDir(folder); err != nil {
		return err
	}
	if err := renameio.WriteFile(filepath.Join(folder, name+catalogSuffix), data, fileMode); err != nil {
		return err
	}
	return segment.SyncDir(folder)
}

// readCatalog reads the catalog of a generation.
func readCatalog(dir string, generation int64) (*catalog, error) {
	path := filepath.Join(dir, generationsDir, generationName(generation)+catalogSuffix)
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	sum, err := os.ReadFile(strings.TrimSuffix(path, catalogSuffix) + sumSuffix)
	if err != nil {
		return nil, fmt.Errorf("%w: the checksum of %s: %w", schema.ErrDataLoss, path, err)
	}
	if got := fmt.Sprintf("%x", sha256.Sum256(data)); !strings.HasPrefix(string(sum), got+" ") {
		return nil, fmt.Errorf("%w: %s has the SHA-256 %s, and the file beside it says another", schema.ErrDataLoss,
			path, got)
	}
	c, err := parseCatalog(data)
	if err == nil && c.Generation != generation {
		err = fmt.Errorf("%w: it is of generation %d", schema.ErrDataLoss, c.Generation)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return c, nil
}

// generations lists the numbers of the generations there are, in ascending order.
func generations(dir string) ([]int64, error) {
	names, err := numbered(filepath.Join(dir, generationsDir), catalogSuffix)
	var list []int64
	for _, name := range names {
		n, err := strconv.ParseInt(name, 10, 64)
		if err == nil && n > 0 {
			list = append(list, n)
		}
	}
	return list, err
}

// numbered lists the files of a folder that have a number and the suffix as their
// name, without the suffix, in ascending order.
func numbered(folder, suffix string) ([]string, error) {
	entries, err := os.ReadDir(folder)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, e := range entries {
		if name, ok := strings.CutSuffix(e.Name(), suffix); ok && packName.MatchString(name) {
			names = append(names, name)
		}
	}
	return names, nil
}

// Is reports whether a directory holds a backup.
func Is(dir string) bool {
	_, err := os.Stat(filepath.Join(dir, formatFile))
	return err == nil
}

// checkFormat is an error unless dir holds a backup of a format that this program knows.
func checkFormat(dir string) error {
	data, err := os.ReadFile(filepath.Join(dir, formatFile))
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%w: there is no backup in %s", schema.ErrNotFound, dir)
	} else if err != nil {
		return err
	}
	var f format
	if err := json.Unmarshal(data, &f); err != nil || f != (format{formatName, formatVersion}) {
		return fmt.Errorf("%w: %s says %s, and this program knows format %q, version %d", schema.ErrInvalid,
			filepath.Join(dir, formatFile), schema.Quote(strings.TrimSpace(string(data))), formatName, formatVersion)
	}
	return nil
}
