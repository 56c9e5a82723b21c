package auth

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/google/renameio/v2"
	"golang.org/x/sys/unix"

	"bowstring/schema"
)

// keepEnded is how long a token that is over stays in the file, for `token list`.
const keepEnded = 90 * 24 * time.Hour

// ReadTokens returns the tokens of a file. One that is not there is
// fs.ErrNotExist.
func ReadTokens(path string) ([]Token, error) {
	b, err := ReadFile(path, maxFile)
	if err != nil {
		return nil, err
	}
	list, err := parseTokens(b)
	if err != nil {
		return nil, fmt.Errorf("%w: %s: %w", schema.ErrInvalid, path, err)
	}
	return list, nil
}

// AddToken makes a token for the principal, groups, tenants and expiry of t,
// fills in the rest, and adds it to a file, which is made if there is none. What
// it returns is the token itself, which is kept nowhere.
func AddToken(path string, t *Token) (token string, err error) {
	err = changeTokens(path, true, func(list []Token) ([]Token, error) {
		now := time.Now()
		if token, err = NewToken(t, now); err != nil {
			return nil, fmt.Errorf("%w: %w", schema.ErrInvalid, err)
		}
		list = slices.DeleteFunc(list, func(old Token) bool {
			past := now.Add(-keepEnded)
			return !old.Revoked.IsZero() && old.Revoked.Before(past) || !old.Expires.IsZero() &&
				old.Expires.Before(past)
		})
		return append(list, *t), nil
	})
	if err != nil {
		return "", err
	}
	return token, nil
}

// RevokeToken ends a token of a file, and returns it. One that was revoked
// before stays as it is.
func RevokeToken(path, id string) (Token, error) {
	var found Token
	return found, changeTokens(path, false, func(list []Token) ([]Token, error) {
		at := slices.IndexFunc(list, func(t Token) bool { return t.ID == id })
		if at < 0 {
			// Whoever pastes the whole token shall not see it again in an error.
			return nil, fmt.Errorf("%w: no token of that ID is in %s; `bowstring token list` shows those there are",
				schema.ErrNotFound, path)
		}
		if list[at].Revoked.IsZero() {
			list[at].Revoked = time.Now().UTC().Truncate(time.Second)
		}
		found = list[at]
		return list, nil
	})
}

// newMode is the mode of a file of tokens that is new.
const newMode = 0o600

// changeTokens replaces a file, from one moment to the next, by what change makes
// of it. One process at a time does so. The file keeps its owner, its group and its mode, so that the server can read
// it, whichever user changes it.
func changeTokens(path string, create bool, change func([]Token) ([]Token, error)) (err error) {
	if path, err = unlinked(path); err != nil {
		return err
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	defer func() { _ = dir.Close() }() // which gives up the lock
	if err := unix.Flock(int(dir.Fd()), unix.LOCK_EX); err != nil {
		return fmt.Errorf("locking %s: %w", dir.Name(), err)
	}
	list, err := ReadTokens(path)
	if err != nil && (!create || !errors.Is(err, fs.ErrNotExist)) {
		return err
	}
	if list, err = change(list); err != nil {
		return err
	}
	b, err := json.MarshalIndent(tokenFile{tokenFileVersion, list}, "", "  ")
	if err != nil {
		return err
	}
	if err := replace(path, append(b, '\n')); err != nil {
		return err
	}
	return dir.Sync() // else the old tokens may be back after a crash
}

// unlinked returns the path of the file that a link leads to: that file is replaced, and not the link. It refuses a
// link of another user, who could have this user's rights replace any file.
func unlinked(path string) (string, error) {
	for range maxLinks {
		info, err := os.Lstat(path)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return path, nil
		case err != nil:
			return "", err
		case info.Mode().Type() != fs.ModeSymlink:
			return path, nil
		}
		if owner := ownerOf(info); owner.Uid != 0 && int(owner.Uid) != os.Geteuid() {
			return "", fmt.Errorf("%w: %s is a symbolic link of user %d; name the file that it leads to",
				schema.ErrInvalid, path, owner.Uid)
		}
		to, err := os.Readlink(path)
		if err != nil {
			return "", err
		}
		if !filepath.IsAbs(to) {
			to = filepath.Join(filepath.Dir(path), to)
		}
		path = to
	}
	return "", fmt.Errorf("%w: %s: too many symbolic links", schema.ErrInvalid, path)
}

// maxLinks is how many links to links are followed.
const maxLinks = 8

func ownerOf(info fs.FileInfo) *syscall.Stat_t { return info.Sys().(*syscall.Stat_t) }

// replace writes a file anew under its name, with the owner, the group and the mode that it has.
func replace(path string, b []byte) (err error) {
	mode, uid, gid := fs.FileMode(newMode), -1, -1
	switch info, err := os.Lstat(path); {
	case err == nil && !info.Mode().IsRegular():
		return fmt.Errorf("%w: %s is no regular file (%s)", schema.ErrInvalid, path, info.Mode())
	case err == nil:
		owner := ownerOf(info)
		mode, uid, gid = info.Mode().Perm(), int(owner.Uid), int(owner.Gid)
	case !errors.Is(err, fs.ErrNotExist):
		return err
	}
	t, err := renameio.NewPendingFile(path, renameio.WithTempDir(filepath.Dir(path)),
		renameio.WithStaticPermissions(newMode))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, t.Cleanup()) }() // which does nothing once the file is replaced
	if uid >= 0 {
		if err := t.Chown(uid, gid); err != nil {
			return fmt.Errorf("%s belongs to user %d and group %d, which would lose it: change it as that user, or as "+
				"root: %w", path, uid, gid, err)
		}
	}
	if err := t.Chmod(mode); err != nil {
		return err
	}
	if _, err := t.Write(b); err != nil {
		return err
	}
	return t.CloseAtomicallyReplace()
}
