package local

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"syscall"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/bloom"
	"github.com/cockroachdb/pebble/v2/vfs"

	"bowstring/schema"
)

// mode says what a database is opened for.
type mode int

const (
	// reading changes no file, whatever is found.
	reading mode = iota
	// writing makes the database if there is none.
	writing
)

// openDatabase opens the database in dir. It is a schema.ErrDataLoss if its files
// are damaged.
func openDatabase(dir string, opts Options, m mode) (db *pebble.DB, err error) {
	fs := guardFS{opts.fs}
	if err := checkManifest(fs, dir); err != nil {
		return nil, damaged("open the database "+dir, err)
	}
	po := &pebble.Options{
		FS:       fs,
		ReadOnly: m == reading,
		Logger:   pebbleLogger{opts.Logger},
		Merger:   countMerger,
		// Raised on purpose only: an older program cannot read a newer format.
		FormatMajorVersion: pebble.FormatTableFormatV6,
		CacheSize:          opts.CacheBytes,
		MemTableSize:       8 << 20,
		MaxOpenFiles:       256,
		EventListener:      listener(opts.Logger),
	}
	for i := range po.Levels {
		// Most lookups of an import are for keys that are not there.
		po.Levels[i].FilterPolicy = bloom.FilterPolicy(10)
		po.Levels[i].BlockSize = 16 << 10
	}
	defer func() {
		// What the database takes for impossible is damage as well.
		if p := recover(); p != nil {
			db, err = nil, damaged("open the database "+dir, fmt.Errorf("panic: %v", p))
		}
	}()
	db, err = pebble.Open(dir, po)
	switch {
	case err == nil:
		return db, nil
	case environmental(err):
		return nil, fmt.Errorf("open the database %s: %w", dir, err)
	}
	return nil, damaged("open the database "+dir, err)
}

// newDatabase makes an empty database. Nobody but the owner may read it: the directory may lie in
// one that is older.
func newDatabase(dir string, opts Options) error {
	db, err := openDatabase(dir, opts, writing)
	if err != nil {
		return err
	}
	if opts.fs == vfs.Default {
		err = os.Chmod(dir, 0o700)
	}
	return errors.Join(err, db.Close())
}

// listener keeps the database from ending the process when it finds damage. Whoever
// reads what is damaged is told by an error.
func listener(log *slog.Logger) *pebble.EventListener {
	return &pebble.EventListener{DataCorruption: func(info pebble.DataCorruptionInfo) {
		log.Debug("a file of the database is damaged", "file", info.Path)
	}}
}

// environmental says whether an error in opening the database is one of the
// process's surroundings, which says nothing of the files.
func environmental(err error) bool {
	var no syscall.Errno
	return errors.As(err, &no) && slices.Contains([]syscall.Errno{
		syscall.EACCES, syscall.EPERM, syscall.EROFS, syscall.ENOSPC, syscall.EDQUOT, syscall.EMFILE, syscall.ENFILE,
		syscall.ENOMEM, syscall.EAGAIN,
	}, no)
}

// damaged is the schema.ErrDataLoss for damage of the database, on one line. Some of the
// database's errors have several, and stacks.
func damaged(doing string, err error) error {
	text, _, _ := strings.Cut(err.Error(), "\n")
	return fmt.Errorf("%w: %s: %s; what is whole can be brought back: bowstring store rebuild", schema.ErrDataLoss,
		doing, text)
}

// dbError is the error of an operation on the database.
func dbError(doing string, err error) error {
	if err == nil {
		return nil
	}
	if pebble.IsCorruptionError(err) {
		return damaged(doing, err)
	}
	return fmt.Errorf("%s: %w", doing, err)
}

// defaultFS is the file system of the database and of the journal.
func defaultFS(fs vfs.FS) vfs.FS {
	if fs == nil {
		return vfs.Default
	}
	return fs
}

// state is how the store was left.
type state struct {
	Clean bool   `json:"clean"` // closed in order
	Boot  string `json:"boot"`  // the kernel run it was last written in
}

func (st state) encode() []byte {
	return fmt.Appendf(nil, `{"clean":%t,"boot":%q}`, st.Clean, st.Boot)
}
