package main

import (
	"context"
	"errors"
	"fmt"

	vk "github.com/virtual-kubelet/virtual-kubelet/node"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	typed "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/record"
)

// node registers with the control plane and hands its pods to the runtime. Virtual Kubelet watches, retries and
// deletes.
type node struct {
	name    string
	client  kubernetes.Interface
	shared  informers.SharedInformerFactory // closed by who made it
	runtime *runtime

	pods     informers.SharedInformerFactory // of this node
	events   record.EventBroadcaster
	provider *provider
	podsRun  *vk.PodController
	nodeRun  *vk.NodeController
}

func (n *node) prepare() (err error) {
	n.pods = informers.NewSharedInformerFactoryWithOptions(n.client, 0,
		informers.WithTweakListOptions(func(o *metav1.ListOptions) {
			o.FieldSelector = fields.OneTermEqualSelector("spec.nodeName", n.name).String()
		}))
	n.events = record.NewBroadcaster()
	n.events.StartRecordingToSink(&typed.EventSinkImpl{Interface: n.client.CoreV1().Events("")})
	n.provider = &provider{runtime: n.runtime, pods: map[string]*pod{}}
	n.podsRun, err = vk.NewPodController(vk.PodControllerConfig{
		PodClient: n.client.CoreV1(), PodInformer: n.pods.Core().V1().Pods(), Provider: n.provider,
		EventRecorder:     n.events.NewRecorder(scheme.Scheme, corev1.EventSource{Component: n.name}),
		ConfigMapInformer: n.shared.Core().V1().ConfigMaps(), SecretInformer: n.shared.Core().V1().Secrets(),
		ServiceInformer: n.shared.Core().V1().Services(),
	})
	if err != nil {
		return err
	}
	n.nodeRun, err = vk.NewNodeController(vk.NewNaiveNodeProvider(), n.description(), n.client.CoreV1().Nodes(),
		vk.WithNodeEnableLeaseV1(n.client.CoordinationV1().Leases(corev1.NamespaceNodeLease), 40))
	return err
}

func (n *node) description() *corev1.Node {
	room := corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("64"), corev1.ResourceMemory: resource.MustParse("256Gi"),
		corev1.ResourcePods: resource.MustParse("50"), corev1.ResourceEphemeralStorage: resource.MustParse("1Ti"),
	}
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: n.name, Labels: map[string]string{
			corev1.LabelHostname: n.name, corev1.LabelOSStable: "linux", corev1.LabelArchStable: "amd64",
		}},
		Status: corev1.NodeStatus{
			NodeInfo: corev1.NodeSystemInfo{OperatingSystem: "linux", Architecture: "amd64", KubeletVersion: "v1.36.3"},
			Capacity: room, Allocatable: room,
			Conditions: []corev1.NodeCondition{{
				Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "Ready",
				LastTransitionTime: metav1.Now(), LastHeartbeatTime: metav1.Now(),
			}},
			Addresses: []corev1.NodeAddress{
				{Type: corev1.NodeInternalIP, Address: "10.213.0.1"}, {Type: corev1.NodeHostName, Address: n.name},
			},
		},
	}
}

func (n *node) run(ctx context.Context) error {
	defer n.events.Shutdown()
	n.pods.Start(ctx.Done())
	defer n.pods.Shutdown()
	ended := make(chan error, 2)
	go func() { ended <- n.podsRun.Run(ctx, 8) }()
	go func() { ended <- n.nodeRun.Run(ctx) }()
	err := errors.Join(<-ended, <-ended)
	if ctx.Err() != nil {
		return nil
	}
	return fmt.Errorf("%s: %w", n.name, err)
}
