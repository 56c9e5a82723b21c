package tend

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/google/renameio/v2"

	"bowstring/schema"
)

// progressFile is the file that says how far a verification is: JSON.
type progressFile struct {
	Format  string `json:"format"`
	Version int    `json:"version"`
	// Scope is a hash of what is verified, and Passes how it is divided.
	Scope  string `json:"scope"`
	Passes int    `json:"passes"`
	// All blobs of the lists before List are done, and the first Next of that one.
	List int `json:"list"`
	Next int `json:"next"`
	// Found is what was found in them.
	Found Verification `json:"found"`

	saved time.Time
}

const (
	progressFormat  = "bowstring-verify"
	progressVersion = 2 // 1 had chunks and pages in one list

	// saveEvery is how often it is written at most.
	saveEvery = 5 * time.Second
)

// fingerprint names what is verified: every snapshot with its chunks.
func (s *Scope) fingerprint() string {
	h := sha256.New()
	for _, snap := range s.Snapshots {
		fmt.Fprintf(h, "snapshot %q %d\n", snap.Dataset, snap.Number)
		for i := range snap.Chunks {
			fmt.Fprintf(h, "%s\n", snap.Chunks[i].Key)
		}
	}
	return fmt.Sprintf("%x", h.Sum(nil))
}

// begin reads how far an earlier run came.
func (v *verifier) begin(passes int) error {
	scope := v.scope.fingerprint()
	v.state = progressFile{Format: progressFormat, Version: progressVersion, Scope: scope, Passes: passes}
	if v.opts.Resume == "" {
		return nil
	}
	old, err := readProgress(v.opts.Resume)
	if old == nil || err != nil {
		return err
	}
	if old.Scope != scope || old.Passes != passes {
		return fmt.Errorf("%w: %s is of %s, or was made with another limit of memory: "+
			"name the same snapshots, or remove it to begin anew",
			schema.ErrInvalid, v.opts.Resume, strings.Join(old.Found.Snapshots, ", "))
	}
	v.state, v.report, v.resumed = *old, old.Found, true
	for _, d := range old.Found.Damaged {
		if !d.Repaired {
			v.broken[d.Key] = true
		}
	}
	return nil
}

// Resumed reads which snapshots the verification of a file was of; none if there is no file.
func Resumed(path string) ([]Name, error) {
	old, err := readProgress(path)
	if old == nil || err != nil {
		return nil, err
	}
	var names []Name
	for _, s := range old.Found.Snapshots {
		dataset, number, _ := strings.Cut(s, "@")
		n, err := strconv.ParseInt(number, 10, 64)
		if err != nil {
			return nil, fmt.Errorf("%w: %s names the snapshot %q: remove the file to begin anew", schema.ErrInvalid,
				path, s)
		}
		names = append(names, Name{Dataset: dataset, Number: n})
	}
	return names, nil
}

// readProgress reads a file, nil if there is none.
func readProgress(path string) (*progressFile, error) {
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	p, err := parseProgress(data)
	if err != nil {
		return nil, fmt.Errorf("%w: %s says of no verification how far it is (%w): name another file, or remove it",
			schema.ErrInvalid, path, err)
	}
	return p, nil
}

func parseProgress(data []byte) (*progressFile, error) {
	p := new(progressFile)
	if err := json.Unmarshal(data, p); err != nil {
		return nil, err
	}
	if p.Format != progressFormat || p.Version != progressVersion {
		return nil, fmt.Errorf("format %q, version %d", p.Format, p.Version)
	}
	if p.List < 0 || p.Next < 0 || p.Passes < 1 {
		return nil, fmt.Errorf("list %d of %d, blob %d", p.List, p.Passes, p.Next)
	}
	return p, nil
}

// save writes how far it is, now and then. What was visited beyond that will be
// visited and counted once more.
func (v *verifier) save(now bool) {
	if v.opts.Resume == "" || !now && time.Since(v.state.saved) < saveEvery {
		return
	}
	v.mu.Lock()
	v.state.Found = v.report
	data, err := json.MarshalIndent(&v.state, "", "  ")
	v.mu.Unlock()
	if err == nil {
		err = renameio.WriteFile(v.opts.Resume, append(data, '\n'), 0o600)
	}
	v.state.saved = time.Now()
	v.saveErr = err
}

// end removes the file: the next run begins anew.
func (v *verifier) end() error {
	if v.opts.Resume == "" {
		return nil
	}
	if err := os.Remove(v.opts.Resume); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
