package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// mount is one of a bundle.
type mount struct {
	Destination string   `json:"destination"`
	Type        string   `json:"type"`
	Source      string   `json:"source"`
	Options     []string `json:"options,omitempty"`
}

func bind(source, at string, readonly bool) mount {
	mode := "rw"
	if readonly {
		mode = "ro"
	}
	return mount{at, "bind", source, []string{"bind", mode}}
}

// volumes makes the volumes of a pod, and says where they are mounted.
func (r *runtime) volumes(object *corev1.Pod) ([]mount, error) {
	sources := map[string]string{}
	for _, v := range object.Spec.Volumes {
		dir := filepath.Join(r.dir, "volumes", string(object.UID), v.Name)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return nil, err
		}
		at, err := r.volume(object, v, dir)
		if err != nil {
			return nil, fmt.Errorf("volume %s: %w", v.Name, err)
		}
		sources[v.Name] = at
	}
	var list []mount
	for _, m := range object.Spec.Containers[0].VolumeMounts {
		source, ok := sources[m.Name]
		if !ok {
			return nil, fmt.Errorf("no volume %s", m.Name)
		}
		list = append(list, bind(source, m.MountPath, m.ReadOnly))
	}
	return list, nil
}

// volume fills dir, or names another directory that is the volume.
func (r *runtime) volume(object *corev1.Pod, v corev1.Volume, dir string) (string, error) {
	ctx := context.Background()
	group := -1
	if s := object.Spec.SecurityContext; s != nil && s.FSGroup != nil {
		group = int(*s.FSGroup)
	}
	switch {
	case v.ConfigMap != nil:
		m, err := r.client.CoreV1().ConfigMaps(object.Namespace).Get(ctx, v.ConfigMap.Name, metav1.GetOptions{})
		if err != nil {
			return "", err
		}
		data := map[string][]byte{}
		for name, text := range m.Data {
			data[name] = []byte(text)
		}
		return dir, write(dir, data, v.ConfigMap.Items, 0o644, group)
	case v.Secret != nil:
		s, err := r.client.CoreV1().Secrets(object.Namespace).Get(ctx, v.Secret.SecretName, metav1.GetOptions{})
		if err != nil {
			return "", err
		}
		mode := os.FileMode(0o644)
		if v.Secret.DefaultMode != nil {
			mode = os.FileMode(*v.Secret.DefaultMode)
		}
		return dir, write(dir, s.Data, v.Secret.Items, mode, group)
	case v.EmptyDir != nil:
		return dir, own(dir, group)
	case v.PersistentVolumeClaim != nil:
		return r.claim(ctx, object.Namespace, v.PersistentVolumeClaim.ClaimName, group)
	case v.Ephemeral != nil:
		return r.claim(ctx, object.Namespace, object.Name+"-"+v.Name, group)
	}
	return "", fmt.Errorf("of a kind that there is no code for: %v", v.VolumeSource)
}

// claim finds the local volume that a claim is bound to.
func (r *runtime) claim(ctx context.Context, namespace, name string, group int) (string, error) {
	claim, err := r.client.CoreV1().PersistentVolumeClaims(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return "", err
	}
	volume, err := r.client.CoreV1().PersistentVolumes().Get(ctx, claim.Spec.VolumeName, metav1.GetOptions{})
	if err != nil {
		return "", err
	}
	if volume.Spec.Local == nil {
		return "", fmt.Errorf("claim %s is bound to %q, which is not local", name, claim.Spec.VolumeName)
	}
	return volume.Spec.Local.Path, own(volume.Spec.Local.Path, group)
}

// own lets a group write to a directory, as fsGroup does.
func own(dir string, group int) error {
	if err := os.Chown(dir, -1, group); err != nil {
		return err
	}
	return os.Chmod(dir, 0o2775)
}

func write(dir string, data map[string][]byte, items []corev1.KeyToPath, mode os.FileMode, group int) error {
	names := map[string]string{}
	for name := range data {
		if len(items) == 0 {
			names[name] = name
		}
	}
	for _, i := range items {
		names[i.Key] = i.Path
	}
	for from, to := range names {
		value, ok := data[from]
		if !ok {
			return fmt.Errorf("no %s in it", from)
		}
		path := filepath.Join(dir, to)
		_ = os.Remove(path)
		if err := os.WriteFile(path, value, mode); err != nil {
			return err
		}
		if err := os.Chown(path, -1, group); err != nil {
			return err
		}
		if err := os.Chmod(path, mode); err != nil { // whatever the mask
			return err
		}
	}
	return nil
}
