package local

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/cockroachdb/pebble/v2"
	"github.com/dustin/go-humanize"
	"golang.org/x/sys/unix"

	"bowstring/fetch/store"
	"bowstring/schema"
	"bowstring/spill/segment"
)

// Names of Examine's checks.
const (
	checkDir      = "directory"
	checkRights   = "permissions"
	checkSystem   = "file system"
	checkSpace    = "free space"
	checkSync     = "fsync"
	checkOwner    = "in use"
	checkShutdown = "last shutdown"
	checkIndex    = "index"
	checkSegments = "segments"
)

// spaceLow is the free disk space below which imports will soon fail.
const spaceLow = 5 << 30

// networks are the network file systems, whose servers may lose locks or synced data.
var networks = map[int64]string{
	unix.NFS_SUPER_MAGIC: "NFS", unix.SMB_SUPER_MAGIC: "SMB", unix.CIFS_SUPER_MAGIC: "SMB",
	unix.SMB2_SUPER_MAGIC: "SMB",
	unix.V9FS_MAGIC:       "9p", unix.CEPH_SUPER_MAGIC: "CephFS", unix.AFS_SUPER_MAGIC: "AFS",
	unix.FUSE_SUPER_MAGIC: "FUSE",
}

// Examine checks the directory of a store and its disk without opening the store. It
// changes nothing, and the store may be in use. If cheap is set, it leaves out checks
// that write or take longer than some milliseconds.
func Examine(dir string, cheap bool) store.Findings {
	e := examination{dir: dir}
	exists, err := checkDirectory(dir)
	switch {
	case err != nil:
		e.Problem(checkDir, "name another directory by --store, or put back what is missing", "%v", err)
		return e.Findings
	case !exists:
		e.Problem(checkDir, "bowstring store init makes a store, --store names another directory",
			"there is no store in %s", dir)
		return e.Findings
	}
	e.OK(checkDir, "%s holds a store of format %d", dir, formatNumber)
	e.rights()
	e.system()
	if cheap {
		return e.Findings
	}
	e.sync()
	e.contents()
	return e.Findings
}

// examination collects the findings of one Examine. It belongs to one goroutine.
type examination struct {
	store.Findings
	dir string
}

// rights checks who may read and write the store.
func (e *examination) rights() {
	info, err := os.Stat(e.dir)
	switch {
	case err != nil:
		e.Problem(checkRights, "run bowstring as the user that the store belongs to", "%v", err)
	case unix.Access(e.dir, unix.W_OK|unix.X_OK) != nil:
		e.Problem(checkRights, "run bowstring as the user that the store belongs to, or give this one the "+
			"right to write",
			"this user may not write to %s", e.dir)
	case info.Mode().Perm()&0o007 != 0:
		e.Warning(checkRights, "chmod o= "+e.dir, "every user of the machine may look into %s (mode %04o): samples "+
			"are in plain files", e.dir, info.Mode().Perm())
	default:
		e.OK(checkRights, "mode %04o", info.Mode().Perm())
	}
}

// system checks the file system and its free space.
func (e *examination) system() {
	var st unix.Statfs_t
	if err := unix.Statfs(e.dir, &st); err != nil {
		e.Problem(checkSystem, "look at the kernel's log", "%s: %v", e.dir, err)
		return
	}
	if name, network := networks[st.Type]; network {
		e.Warning(checkSystem, "keep the store on a disk of the machine: the lock on it, mapped files and fsync hold "+
			"only as well as the server and the mount options make them",
			"the store is on %s", name)
	} else {
		e.OK(checkSystem, "a disk of this machine (type 0x%x)", st.Type)
	}
	free, size := st.Bavail*uint64(st.Bsize), st.Blocks*uint64(st.Bsize)
	says := fmt.Sprintf("%s of %s free", humanize.IBytes(free), humanize.IBytes(size))
	switch {
	case st.Files > 0 && st.Ffree == 0:
		e.Problem(checkSpace, "remove files that are not the store's", "no inode is free")
	case free < 64<<20:
		e.Problem(checkSpace, "free some: imports stop here, and a collection (bowstring gc) needs room to move "+
			"what it keeps", "%s", says)
	case free < spaceLow:
		e.Warning(checkSpace, "bowstring gc frees what no snapshot refers to; drop what is not needed first", "%s",
			says)
	default:
		e.OK(checkSpace, "%s", says)
	}
}

// sync writes a file and syncs it. Some file systems accept writes and fail only at the
// sync.
func (e *examination) sync() {
	err := func() (err error) {
		f, err := os.CreateTemp(e.dir, ".doctor-*")
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, f.Close(), os.Remove(f.Name())) }()
		if _, err := f.Write(make([]byte, 4096)); err != nil {
			return err
		}
		if err := f.Sync(); err != nil {
			return err
		}
		return segment.SyncDir(e.dir)
	}()
	if err != nil {
		e.Problem(checkSync, "look at the kernel's log and the disk: nothing that is imported would survive "+
			"a power cut", "a file cannot be written and synced: %v", err)
		return
	}
	e.OK(checkSync, "a file was written and synced")
}

// contents checks the database, unless a process has it open.
func (e *examination) contents() {
	f, err := os.Open(filepath.Join(e.dir, lockFile))
	switch {
	case errors.Is(err, fs.ErrNotExist): // the store was never opened
	case err != nil:
		e.Problem(checkOwner, "run bowstring as the user that the store belongs to", "%v", err)
		return
	default:
		defer f.Close()
		if errors.Is(unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB), unix.EWOULDBLOCK) {
			e.OK(checkOwner, "%v", inUse(e.dir, f))
			return
		}
		e.OK(checkOwner, "by no process")
	}
	// The shared lock is held meanwhile, so that no process opens the store for writing.
	if err := e.database(); err != nil {
		e.Problem(checkIndex, "keep a copy of the directory before anything else is done to it",
			"the database cannot be read: %v", err)
	}
}

// database opens the database read-only, and reports its last shutdown, counts and
// segments. It runs only if no process has the store open, because pebble cannot read a
// database that another process writes to.
func (e *examination) database() (err error) {
	dir := filepath.Join(e.dir, pebbleDir)
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		e.OK(checkIndex, "the store is empty")
		return nil
	}
	// The merger and the format version must be those of openDatabase.
	db, err := pebble.Open(dir, &pebble.Options{
		ReadOnly: true, Merger: countMerger, FormatMajorVersion: pebble.FormatTableFormatV6, Logger: unheard{},
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	s := &Store{dir: e.dir, db: db}
	left := state{Clean: true}
	v, err := s.value(keyState)
	if err == nil && v != nil {
		err = json.Unmarshal(v, &left)
	}
	if err != nil {
		return err
	}
	if left.Clean {
		e.OK(checkShutdown, "the store was closed in order")
	} else {
		e.Warning(checkShutdown, "nothing: the next open checks what may not have reached the disk",
			"the store was not closed in order")
	}
	var total count
	if v, err = s.value(keyCount); err == nil && v != nil {
		err = total.add(v)
	}
	if err != nil {
		return err
	}
	e.OK(checkIndex, "%s on disk for %s blobs of %s", humanize.IBytes(sizeOf(dir)), humanize.Comma(total.blobs),
		humanize.IBytes(uint64(total.bytes)))
	return e.segments(s)
}

// segments compares the files with the records in the database. A missing file is a loss.
// An unknown file is a sign that an older copy of the database was restored.
func (e *examination) segments(s *Store) error {
	records, err := s.segmentRecords()
	if err != nil {
		return err
	}
	next, err := s.number(keySegment)
	if err != nil {
		return err
	}
	ids, err := segment.List(filepath.Join(e.dir, segmentsDir))
	if err != nil {
		return err
	}
	there := map[uint32]bool{}
	for _, id := range ids {
		there[id] = true
	}
	var missing []string
	for _, r := range records {
		if !there[r.id] {
			missing = append(missing, segment.FileName(r.id))
		}
		delete(there, r.id)
	}
	var unknown []string
	for _, id := range ids {
		if there[id] && id >= next { // a collection has freed the lower ones
			unknown = append(unknown, segment.FileName(id))
		}
	}
	if len(missing) > 0 {
		e.Problem(checkSegments, "put the files back: the blobs in them are lost without", "missing in %s: %s",
			filepath.Join(e.dir, segmentsDir), few(missing))
	}
	if len(unknown) > 0 {
		e.Warning(checkSegments, "find out whether an older copy of the directory "+pebbleDir+
			" was put back; the files are kept",
			"the index is older than these files, which it does not know: %s", few(unknown))
	}
	if len(missing) == 0 && len(unknown) == 0 {
		e.OK(checkSegments, "the index knows %d, which are there, and no others", len(records))
	}
	return nil
}

// few lists some of the names, and the number of the others.
func few(names []string) string {
	const most = 5
	if more := len(names) - most; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), more)
	}
	return strings.Join(names, ", ")
}

// sizeOf is the size of the files in a directory. It ignores errors.
func sizeOf(dir string) (total uint64) {
	entries, _ := os.ReadDir(dir)
	for _, entry := range entries {
		if info, err := entry.Info(); err == nil && info.Mode().IsRegular() {
			total += uint64(info.Size())
		}
	}
	return total
}

// unheard drops the database's messages. Its errors are returned.
type unheard struct{}

func (unheard) Infof(string, ...any)  {}
func (unheard) Errorf(string, ...any) {}

// Fatalf is called if the database cannot continue.
func (unheard) Fatalf(format string, args ...any) {
	panic(fmt.Errorf("%w: "+format, append([]any{schema.ErrDataLoss}, args...)...))
}
