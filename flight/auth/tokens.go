package auth

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/google/renameio/v2"
	"golang.org/x/sys/unix"

	"bowstring/schema"
)

// A token is bow_ID_SECRET. The ID is no secret: it finds the record, and names the token
// in logs and in `token revoke`. The secret is 256 random bits, and its SHA-256 is
// stored. A slow hash such as bcrypt protects passwords, which can be guessed; 256 random
// bits cannot. It would only cost 0.1 s of CPU time for each call, which any client could
// cause.
const (
	tokenPrefix = "bow_"
	secretBytes = 32
	idBytes     = 8
)

var tokenForm = regexp.MustCompile(`^bow_([0-9a-f]{16})_([A-Za-z0-9_-]{43})$`)

// Why a token is not known. None of these reaches a client.
var (
	errToken   = errors.New("there is no such token")
	errRevoked = errors.New("the token was revoked")
	errExpired = errors.New("the token has expired")
	errChanged = errors.New("the token is another's by now")
)

// Token is what is kept of a token.
type Token struct {
	ID        string    `json:"id"`
	Hash      string    `json:"sha256"` // of the secret, in hexadecimal
	Principal string    `json:"principal"`
	Groups    []string  `json:"groups,omitempty"`
	Tenant    string    `json:"tenant,omitempty"`
	Tenants   []string  `json:"tenants,omitempty"` // others that it may choose
	Created   time.Time `json:"created"`
	Expires   time.Time `json:"expires,omitzero"` // never if zero
	Revoked   time.Time `json:"revoked,omitzero"` // not if zero
}

// State is "valid", "expired" or "revoked".
func (t *Token) State(now time.Time) string {
	switch err := t.end(now); {
	case err == nil:
		return "valid"
	case errors.Is(err, errExpired):
		return "expired"
	default:
		return "revoked"
	}
}

// end says why a token is over, nil if it is not.
func (t *Token) end(now time.Time) error {
	switch {
	case !t.Revoked.IsZero():
		return errRevoked
	case !t.Expires.IsZero() && !now.Before(t.Expires):
		return errExpired
	}
	return nil
}

// identity is who has the token.
func (t *Token) identity() Identity {
	return Identity{
		Principal: t.Principal, Groups: t.Groups, Tenant: t.Tenant, Tenants: t.Tenants,
		By: ByToken, ID: t.ID, Expires: t.Expires,
	}
}

// same reports whether two records let in the same caller by the same secret.
func (t *Token) same(u *Token) bool {
	return t.Hash == u.Hash && t.Principal == u.Principal && t.Tenant == u.Tenant && t.Expires.Equal(u.Expires) &&
		slices.Equal(t.Groups, u.Groups) && slices.Equal(t.Tenants, u.Tenants)
}

// NewToken makes a token for t's principal, groups, tenants and expiry, and
// fills in the rest. The secret is in what it returns, and nowhere else.
func NewToken(t *Token, now time.Time) (secret string, err error) {
	id, key := make([]byte, idBytes), make([]byte, secretBytes)
	_, _ = rand.Read(id) // never fails; it would end the process
	_, _ = rand.Read(key)
	text := base64.RawURLEncoding.EncodeToString(key)
	t.ID, t.Created = hex.EncodeToString(id), now.UTC().Truncate(time.Second)
	t.Hash = hashOf(text)
	who := t.identity()
	if err := who.valid(); err != nil {
		return "", err
	}
	if !t.Expires.IsZero() && !t.Expires.After(now) {
		return "", fmt.Errorf("expires: got %s, want a moment to come", t.Expires.UTC().Format(time.RFC3339))
	}
	return tokenPrefix + t.ID + "_" + text, nil
}

func hashOf(secret string) string {
	h := sha256.Sum256([]byte(secret))
	return hex.EncodeToString(h[:])
}

// tokenFile is the file of tokens, as JSON.
type tokenFile struct {
	Version int     `json:"version"`
	Tokens  []Token `json:"tokens"`
}

const tokenFileVersion = 1

// parseTokens reads the file, and checks everything in it.
func parseTokens(b []byte) ([]Token, error) {
	var f tokenFile
	dec := json.NewDecoder(strings.NewReader(string(b)))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&f); err != nil {
		return nil, fmt.Errorf("it is no file of tokens: %w", err)
	}
	if dec.More() {
		return nil, errors.New("it is no file of tokens: something follows its end")
	}
	if f.Version != tokenFileVersion {
		return nil, fmt.Errorf("version: got %d, want %d", f.Version, tokenFileVersion)
	}
	seen := map[string]bool{}
	for i := range f.Tokens {
		t := &f.Tokens[i]
		hash, err := hex.DecodeString(t.Hash)
		switch {
		case !tokenForm.MatchString(tokenPrefix + t.ID + "_" + strings.Repeat("A", 43)):
			err = fmt.Errorf("id: got %.40q, want 16 hexadecimal digits", t.ID)
		case seen[t.ID]:
			err = fmt.Errorf("id %s is there twice", t.ID)
		case err != nil || len(hash) != sha256.Size:
			err = fmt.Errorf("sha256 of %s: want 64 hexadecimal digits", t.ID) // what stands there may be a secret
		default:
			who := t.identity()
			if err = who.valid(); err != nil {
				err = fmt.Errorf("token %s: %w", t.ID, err)
			}
		}
		if err != nil {
			return nil, err
		}
		seen[t.ID] = true
	}
	return f.Tokens, nil
}

// tokens are those that are known. It is safe for concurrent use.
type tokens struct {
	table atomic.Pointer[map[string]*Token] // by ID
}

// load takes over what the file says.
func (t *tokens) load(contents [][]byte) error {
	list, err := parseTokens(contents[0])
	if err != nil {
		return err
	}
	table := make(map[string]*Token, len(list))
	for i := range list {
		table[list[i].ID] = &list[i]
	}
	t.table.Store(&table)
	return nil
}

// unknown has the hash that is compared if no token has the ID, so that the answer takes
// as long.
var unknown = Token{Hash: strings.Repeat("0", 2*sha256.Size)}

// identify finds the owner of a token. The identity ends when the token is
// revoked, taken out of the file, or changed.
func (t *tokens) identify(token string, now time.Time) (Identity, error) {
	parts := tokenForm.FindStringSubmatch(token)
	if parts == nil {
		return Identity{}, errToken
	}
	id := parts[1]
	known, there := (*t.table.Load())[id]
	if !there {
		known = &unknown
	}
	// Hashes, so their length is that of the kept one, and how far they agree says
	// nothing about the secret; even so, in constant time.
	right := subtle.ConstantTimeCompare([]byte(hashOf(parts[2])), []byte(known.Hash)) == 1
	if !right || !there {
		return Identity{}, errToken
	}
	if err := known.end(now); err != nil {
		return Identity{}, fmt.Errorf("token %s: %w", id, err)
	}
	who := known.identity()
	who.check = func() error {
		current := (*t.table.Load())[id]
		switch {
		case current == nil || !current.Revoked.IsZero():
			return errRevoked
		case !current.same(known):
			return errChanged
		}
		return nil
	}
	return who, nil
}

// isOurs reports whether a token has the form of those that are made here.
func isOurs(token string) bool { return strings.HasPrefix(token, tokenPrefix) }

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

// AddToken makes a token for the principal, groups, tenants and expiry of t, fills in the
// rest, and adds it to a file, which it creates if it is missing. It returns the token
// itself, which is stored nowhere.
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
			// No ID in the error: the argument may be a whole token, with its secret
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
	defer func() { _ = dir.Close() }() // closing releases the lock
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
