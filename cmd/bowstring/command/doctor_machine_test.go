package command

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"bowstring/fetch/store"
)

// put writes a file below a folder, and returns its path.
func put(t *testing.T, dir, name, text string) string {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// certificateUntil is a certificate in PEM.
func certificateUntil(t *testing.T, begin, end time.Time) string {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	about := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: begin, NotAfter: end}
	raw, err := x509.CreateCertificate(rand.Reader, about, about, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: raw}))
}

// sound is a setup in which nothing is wrong, on a made-up /proc.
func sound(t *testing.T) *setup {
	t.Helper()
	root := t.TempDir()
	for name, text := range map[string]string{
		"tcp_window_scaling": "1\n", "tcp_rmem": "4096\t131072\t6291456\n", "tcp_wmem": "4096\t16384\t4194304\n",
	} {
		put(t, root, "proc/sys/net/ipv4/"+name, text)
	}
	return &setup{root: root, now: time.Now(), files: 1 << 20, memory: 8 << 30, window: 2 << 30, connections: 4096,
		certificates: map[string]string{}}
}

// Each thing that can be wrong is found, and said with what to do; what is right is found right.
func TestSetup(t *testing.T) {
	day := 24 * time.Hour
	now := time.Now()
	for _, c := range []struct {
		name, check, level, want string
		spoil                    func(t *testing.T, s *setup)
	}{
		{"few files", checkFiles, store.LevelProblem, "ulimit -n 65536", func(_ *testing.T, s *setup) {
			s.files = 256
		}},
		{"fewer files than connections", checkFiles, store.LevelWarning, "up to 5120", func(_ *testing.T, s *setup) {
			s.files = 4096
		}},
		{"enough files", checkFiles, store.LevelOK, "1048576", func(*testing.T, *setup) {}},
		{"small windows", checkWindows, store.LevelWarning, "sysctl -w net.ipv4.tcp_rmem='4096 131072 16777216'",
			func(t *testing.T, s *setup) {
				put(t, s.root, "proc/sys/net/ipv4/tcp_rmem", "4096 131072 262144")
			}},
		{"no scaling", checkWindows, store.LevelProblem, "tcp_window_scaling=1", func(t *testing.T, s *setup) {
			put(t, s.root, "proc/sys/net/ipv4/tcp_window_scaling", "0")
		}},
		{"large windows", checkWindows, store.LevelOK, "63 MB/s over 100 ms", func(*testing.T, *setup) {}},
		{"no such file", checkWindows, "", "", func(t *testing.T, s *setup) { s.root = t.TempDir() }},
		{"more window than memory", checkMemory, store.LevelWarning, "7.0 GiB of the 8.0 GiB",
			func(_ *testing.T, s *setup) { s.window = 7 << 30 }},
		{"a spill that is not there yet", checkSpillSpace, store.LevelOK, "free", func(t *testing.T, s *setup) {
			s.spill = t.TempDir() + "/a/b"
		}},
		{"a spill on tmpfs", checkSpill, store.LevelWarning, "tmpfs, which is memory", func(t *testing.T, s *setup) {
			if _, err := os.Stat("/dev/shm"); err != nil {
				t.Skip(err)
			}
			s.spill = "/dev/shm/bowstring"
		}},
		{"a spill in a file", checkSpill, store.LevelProblem, "not a directory", func(t *testing.T, s *setup) {
			s.spill = put(t, t.TempDir(), "file", "") + "/spill"
		}},
		{"a full disk", checkSpillSpace, store.LevelWarning, "less than serve.spill-keep-free (1.0 EiB)",
			func(t *testing.T, s *setup) {
				s.spill, s.keepFree = t.TempDir(), 1<<60
			}},
		{"a good certificate", checkCertificate, store.LevelOK, "good until", func(t *testing.T, s *setup) {
			s.certificates["serve.tls-cert"] = put(t, t.TempDir(), "c", certificateUntil(t, now, now.Add(90*day)))
		}},
		{"one near its end", checkCertificate, store.LevelWarning, "serve.admin-cert: ", func(t *testing.T, s *setup) {
			s.certificates["serve.admin-cert"] = put(t, t.TempDir(), "c", certificateUntil(t, now, now.Add(13*day)))
		}},
		{"one of several near its end", checkCertificate, store.LevelWarning, "ends on", func(t *testing.T, s *setup) {
			two := certificateUntil(t, now, now.Add(90*day)) + certificateUntil(t, now, now.Add(day))
			s.certificates["serve.tls-client-ca"] = put(t, t.TempDir(), "c", two)
		}},
		{"one that has ended", checkCertificate, store.LevelProblem, "ended on", func(t *testing.T, s *setup) {
			s.certificates["serve.tls-cert"] = put(t, t.TempDir(), "c",
				certificateUntil(t, now.Add(-2*day), now.Add(-day)))
		}},
		{"one that is not valid yet", checkCertificate, store.LevelProblem, "begins on", func(t *testing.T, s *setup) {
			s.certificates["serve.tls-cert"] = put(t, t.TempDir(), "c",
				certificateUntil(t, now.Add(day), now.Add(2*day)))
		}},
		{"no certificate", checkCertificate, store.LevelProblem, "there is no certificate in",
			func(t *testing.T, s *setup) {
				s.certificates["serve.tls-cert"] = put(t, t.TempDir(), "c", "text")
			}},
		{"no file", checkCertificate, store.LevelProblem, "no such file", func(_ *testing.T, s *setup) {
			s.certificates["serve.tls-cert"] = "/nothing"
		}},
		{"good rules", checkRules, store.LevelOK, "1 rule", func(t *testing.T, s *setup) {
			s.rules = put(t, t.TempDir(), "r", "rules:\n  - {name: a, groups: [ops], datasets: ['*'], "+
				"rights: [admin]}\n")
		}},
		{"rules that are likely not meant", checkRules, store.LevelWarning, "bowstring auth lint says all",
			func(t *testing.T, s *setup) {
				s.rules = put(t, t.TempDir(), "r", "rules:\n  - {name: a, principals: ['*'], datasets: ['*'], "+
					"rights: [admin]}\n")
			}},
		{"broken rules", checkRules, store.LevelProblem, "keeps the rules it had", func(t *testing.T, s *setup) {
			s.rules = put(t, t.TempDir(), "r", "rules: 3\n")
		}},
		{"an audit log nowhere", checkAudit, store.LevelProblem, "no such file", func(_ *testing.T, s *setup) {
			s.auditFolder = "/nothing"
		}},
		{"an audit log", checkAudit, "", "free for it", func(t *testing.T, s *setup) { s.auditFolder = t.TempDir() }},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := sound(t)
			c.spoil(t, s)
			var about []string
			for _, f := range s.examine() {
				if f.Check != c.check {
					continue
				}
				says := f.Level + ": " + f.Says + ". " + f.Do
				about = append(about, says)
				if (c.level == "" || f.Level == c.level) && strings.Contains(says, c.want) {
					if f.Level != store.LevelOK && f.Do == "" {
						t.Errorf("%q does not say what to do", says)
					}
					return
				}
			}
			if c.want != "" || len(about) > 0 {
				t.Errorf("%s says %q, want %s with %q", c.check, about, c.level, c.want)
			}
		})
	}
}
