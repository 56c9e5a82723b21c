package main

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
)

// image is an unpacked image.
type image struct {
	root string // its files
	env  []string
	dir  string
	run  []string // its entrypoint
}

func loadImage(dir string) (image, error) {
	data, err := os.ReadFile(filepath.Join(dir, "config.json"))
	if err != nil {
		return image{}, err
	}
	var about struct {
		Config struct {
			Env, Entrypoint []string
			WorkingDir      string
		} `json:"config"`
	}
	if err := json.Unmarshal(data, &about); err != nil {
		return image{}, err
	}
	root, err := filepath.Abs(filepath.Join(dir, "rootfs"))
	return image{root: root, env: about.Config.Env, dir: about.Config.WorkingDir, run: about.Config.Entrypoint}, err
}

// runtime runs containers by runc, each in a network namespace of its own on the bridge br0.
type runtime struct {
	dir    string
	image  image
	client kubernetes.Interface
	hosts  func() string // what /etc/hosts says of services

	running sync.WaitGroup // pods
	count   atomic.Int64
	closing atomic.Bool // nothing is to be started again
}

// runc is a command of runc, which keeps what it knows in the runtime's directory.
func (r *runtime) runc(words ...string) *exec.Cmd {
	return exec.Command("runc", append([]string{"--root", filepath.Join(r.dir, "runc")}, words...)...)
}

// endAll kills what is left, and waits for it.
func (r *runtime) endAll() {
	r.closing.Store(true)
	ended := make(chan struct{})
	go func() {
		r.running.Wait()
		close(ended)
	}()
	for { // some may just be starting
		bundles, _ := filepath.Glob(filepath.Join(r.dir, "bundles", "*"))
		for _, b := range bundles {
			_ = r.runc("kill", filepath.Base(b), "KILL").Run()
		}
		select {
		case <-ended:
			return
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// container is one that is ready to be started.
type container struct {
	runtime               *runtime
	name, bundle, address string
	command               *exec.Cmd
	log                   *os.File
}

func (c *container) signal(s syscall.Signal) {
	if out, err := c.runtime.runc("kill", c.name, fmt.Sprint(int(s))).CombinedOutput(); err != nil {
		slog.Warn("runc kill", "container", c.name, "error", err, "output", string(out))
	}
}

func (c *container) remove() {
	_ = c.runtime.runc("delete", "--force", c.name).Run()
	_ = exec.Command("ip", "netns", "delete", c.name).Run()
	_ = os.RemoveAll(c.bundle)
	_ = c.log.Close()
}

// prepare makes volumes, network and bundle of a pod's container.
func (r *runtime) prepare(object *corev1.Pod) (*container, error) {
	spec := object.Spec
	if len(spec.Containers) != 1 || len(spec.InitContainers) != 0 {
		return nil, fmt.Errorf("%d containers and %d before them, want one", len(spec.Containers),
			len(spec.InitContainers))
	}
	number := r.count.Add(1)
	c := &container{
		runtime: r, name: fmt.Sprintf("pod%d", number), address: fmt.Sprintf("10.213.%d.%d", 1+number/250,
			1+number%250),
	}
	c.bundle = filepath.Join(r.dir, "bundles", c.name)
	mounts, err := r.volumes(object)
	if err != nil {
		return nil, err
	}
	logs := filepath.Join(r.dir, "logs")
	for _, dir := range []string{c.bundle, logs} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return nil, err
		}
	}
	hosts := filepath.Join(c.bundle, "hosts")
	if err := os.WriteFile(hosts, []byte("127.0.0.1 localhost\n"+r.hosts()), 0o644); err != nil {
		return nil, err
	}
	mounts = append(mounts, bind(hosts, "/etc/hosts", true))
	data, err := json.Marshal(r.bundle(object, c.name, mounts))
	if err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(c.bundle, "config.json"), data, 0o600); err != nil {
		return nil, err
	}
	if err := connect(c.name, c.address); err != nil {
		return nil, err
	}
	c.log, err = os.OpenFile(filepath.Join(logs, object.Namespace+"_"+object.Name+".log"),
		os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	c.command = r.runc("run", "--bundle", c.bundle, c.name)
	c.command.Stdout, c.command.Stderr = c.log, c.log
	return c, nil
}

// connect makes a network namespace with an address on the bridge.
func connect(name, address string) error {
	for _, words := range [][]string{
		{"netns", "add", name},
		{"link", "add", "v" + name, "type", "veth", "peer", "name", "eth0", "netns", name},
		{"link", "set", "v" + name, "master", "br0", "up"},
		{"-n", name, "addr", "add", address + "/16", "dev", "eth0"},
		{"-n", name, "link", "set", "eth0", "up"},
		{"-n", name, "link", "set", "lo", "up"},
		{"-n", name, "route", "add", "default", "via", "10.213.0.1"},
	} {
		if out, err := exec.Command("ip", words...).CombinedOutput(); err != nil {
			return fmt.Errorf("ip %v: %w: %s", words, err, out)
		}
	}
	return nil
}

// bundle is the OCI runtime's description of the container.
func (r *runtime) bundle(object *corev1.Pod, name string, mounts []mount) map[string]any {
	spec := object.Spec.Containers[0]
	user := map[string]any{"uid": 0, "gid": 0}
	if s := object.Spec.SecurityContext; s != nil {
		if s.RunAsUser != nil {
			user["uid"] = *s.RunAsUser
		}
		if s.RunAsGroup != nil {
			user["gid"] = *s.RunAsGroup
		}
		if s.FSGroup != nil {
			user["additionalGids"] = []int64{*s.FSGroup}
		}
	}
	env := append([]string{}, r.image.env...)
	for _, v := range spec.Env { // Virtual Kubelet has looked up where they come from
		env = append(env, v.Name+"="+v.Value)
	}
	readonly := spec.SecurityContext != nil && spec.SecurityContext.ReadOnlyRootFilesystem != nil &&
		*spec.SecurityContext.ReadOnlyRootFilesystem
	args := r.image.run
	if len(spec.Command) > 0 {
		args = spec.Command
	}
	all := append([]mount{
		{"/proc", "proc", "proc", nil}, {"/dev", "tmpfs", "tmpfs", []string{"nosuid", "mode=755", "size=65536k"}},
		{"/sys", "none", "/sys", []string{"rbind", "ro", "nosuid", "nodev"}},
	}, mounts...)
	return map[string]any{
		"ociVersion": "1.0.2",
		"hostname":   object.Name,
		"process": map[string]any{
			"terminal": false, "user": user, "env": env, "cwd": r.image.dir,
			"args":            append(append([]string{}, args...), spec.Args...),
			"noNewPrivileges": true, "capabilities": map[string]any{},
		},
		"root":   map[string]any{"path": r.image.root, "readonly": readonly},
		"mounts": all,
		"linux": map[string]any{"namespaces": []map[string]string{
			{"type": "pid"}, {"type": "ipc"}, {"type": "uts"}, {"type": "mount"},
			{"type": "network", "path": "/run/netns/" + name},
		}},
	}
}
