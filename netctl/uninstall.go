package main

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/flowkeep/flowkeep/api/wellknown"
	"github.com/flowkeep/flowkeep/netctl/apiserver"
	"github.com/flowkeep/flowkeep/netctl/doctor"
	"github.com/spf13/cobra"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const uninstallLong = `Uninstall removes Flowkeep from the cluster: first what answers the API server and the workloads, then what is on the nodes, by a pod on each that
runs "netplugin clean --force" from the installed image, and when all nodes are clean the rest: Open vSwitch's pods, roles and their bindings, and
the namespace flowkeep-system. It ends when all of that is gone. NetworkPolicies stay, and nobody enforces them.

Pods that Flowkeep wired lose their network: while there are any it refuses, unless --force is given.

CustomResourceDefinitions, and with them all objects of their kinds, stay unless --crds is given; those that another project installed under the same
name stay in any case. Objects of yours stay, such as bindings of the role flowkeep-view to users.

A node that does not answer in time, or cannot be cleaned, is named, and the rest stays as it is: run it again when the node is back, or with
--leave-nodes to go on without it. It may be interrupted at any time, and repeated.`

// uninstall is what is asked for.
type uninstall struct {
	yes, force, crds, state, leaveNodes bool
	image                               string
	wait                                time.Duration
	out                                 io.Writer
	agreed                              func() bool
	api                                 *apiserver.Client
}

func uninstallCommand(o *options) *cobra.Command {
	u := &uninstall{}
	cmd := &cobra.Command{
		Use: "uninstall", Short: "Remove Flowkeep from the cluster and its nodes", Long: uninstallLong, Args: exactly(),
		Example: "  netctl uninstall\n  netctl uninstall --yes --force --state --crds",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.server != "" {
				return usageError{errors.New("uninstall changes objects of the API server's: leave out --server and FLOWKEEP_SERVER, and give --kubeconfig if need be")}
			}
			c, err := apiserver.New(o.access())
			if err != nil {
				return err
			}
			defer c.Close()
			u.api, u.out, u.agreed = c, cmd.OutOrStdout(), func() bool { return u.yes || agreed(cmd, c.Server()) }
			return u.run(cmd.Context())
		},
	}
	f := cmd.Flags()
	f.BoolVarP(&u.yes, "yes", "y", false, "do not ask")
	f.BoolVar(&u.force, "force", false, "also while pods have their network from Flowkeep: they lose it")
	f.BoolVar(&u.crds, "crds", false, "remove the CustomResourceDefinitions too, and with them all objects of their kinds")
	f.BoolVar(&u.state, "state", false, "remove /var/lib/flowkeep on the nodes too, and what the parts node-state and macvtap keep beside it")
	f.BoolVar(&u.leaveNodes, "leave-nodes", false, "go on although a node could not be cleaned")
	f.StringVar(&u.image, "image", "", "image with netplugin; default: that of the DaemonSet netplugin")
	f.DurationVar(&u.wait, "wait", 2*time.Minute, "how long to wait for the nodes, and then for what was deleted to be gone")
	return cmd
}

func agreed(cmd *cobra.Command, server string) bool {
	fmt.Fprintf(cmd.ErrOrStderr(), "Remove Flowkeep from the cluster at %s? Type yes: ", server)
	line, _ := bufio.NewReader(io.LimitReader(cmd.InOrStdin(), 100)).ReadString('\n')
	return strings.TrimSpace(line) == "yes"
}

const (
	ownNamespace = "/api/v1/namespaces/flowkeep-system"
	ownApps      = "/apis/apps/v1/namespaces/flowkeep-system"
	rbac         = "/apis/rbac.authorization.k8s.io/v1"
	admission    = "/apis/admissionregistration.k8s.io/v1"
	ofFlowkeep   = "app.kubernetes.io/part-of=flowkeep"
	cleanerLabel = wellknown.LabelClean

	registrations = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/"
	note          = "flowkeep-uninstall" // a ConfigMap: what a run that goes on has to know of the first
)

func (u *uninstall) run(ctx context.Context) error {
	first, rest, err := u.found(ctx)
	if err != nil {
		return err
	}
	if len(first)+len(rest) == 0 {
		fmt.Fprintln(u.out, "nothing of Flowkeep's is in the cluster"+u.kept(ctx))
		return nil
	}
	installed := slices.Contains(first, ownApps+"/daemonsets/netplugin")
	if installed && !u.force {
		if err := u.wired(ctx); err != nil {
			return err
		}
	}
	if !u.agreed() {
		return errors.New("not uninstalled")
	}
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer stop()
	err = u.begin(ctx, first, rest, installed)
	if err != nil && ctx.Err() != nil {
		return errors.New("interrupted: run it again to go on")
	}
	return err
}

// begin changes what is there, and goes on where a run before was interrupted.
func (u *uninstall) begin(ctx context.Context, first, rest []string, installed bool) error {
	ending, err := u.ending(ctx)
	if err != nil {
		return err
	}
	if !ending {
		if err := u.findImage(ctx, installed); err != nil {
			return err
		}
	}
	if installed {
		if err := u.forget(ctx); err != nil {
			return err
		}
	}
	others, daemons := split(first)
	if err := u.remove(ctx, others); err != nil {
		return err
	}
	if installed {
		if err := u.unwired(ctx); err != nil {
			return err
		}
	}
	if err := u.remove(ctx, daemons); err != nil {
		return err
	}
	var left []string
	if !ending {
		if left, err = u.nodes(ctx); err != nil {
			if !u.leaveNodes || !errors.As(err, new(notClean)) || ctx.Err() != nil {
				return err
			}
			fmt.Fprintln(u.out, "going on without:", err)
		}
	}
	if err := u.remove(ctx, rest); err != nil {
		return err
	}
	return u.gone(ctx, append(first, rest...), left)
}

// found is what is there: what goes first, and the rest.
func (u *uninstall) found(ctx context.Context) (first, rest []string, err error) {
	for _, path := range []string{admission + "/validatingwebhookconfigurations/flowkeep-what-if", "/apis/apiregistration.k8s.io/v1/apiservices/v1alpha1.inspect.flowkeep.io"} {
		if is, err := u.there(ctx, path); err != nil {
			return nil, nil, err
		} else if is {
			first = append(first, path)
		}
	}
	for _, kind := range []string{"daemonsets", "deployments"} {
		names, err := u.workloads(ctx, kind)
		if err != nil {
			return nil, nil, err
		}
		for _, name := range names {
			if name != "openvswitch" { // nodes' bridges can only be removed while it runs
				first = append(first, ownApps+"/"+kind+"/"+name)
			}
		}
	}
	for _, path := range u.rest() {
		is, err := u.there(ctx, path)
		if name, crd := strings.CutPrefix(path, registrations); err == nil && is && crd {
			is, err = u.ours(ctx, name)
		}
		if err != nil {
			return nil, nil, err
		} else if is {
			rest = append(rest, path)
		}
	}
	return first, rest, nil
}

func (u *uninstall) there(ctx context.Context, path string) (bool, error) {
	_, err := apiserver.One[metav1.PartialObjectMetadata](ctx, u.api, path)
	if apiserver.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("look for %s: %w", short(path), err)
	}
	return true, nil
}

// ours tells whether a CustomResourceDefinition is as Flowkeep's: other projects have some of these names too.
func (u *uninstall) ours(ctx context.Context, name string) (bool, error) {
	type definition struct {
		Spec struct{ Versions []struct{ Name string } }
	}
	d, err := apiserver.One[definition](ctx, u.api, registrations+name)
	if err != nil {
		return false, err
	}
	var versions []string
	for _, v := range d.Spec.Versions {
		versions = append(versions, v.Name)
	}
	if doctor.OwnCRD(name, versions) {
		return true, nil
	}
	fmt.Fprintf(u.out, "%s stays: with the versions %s it is not Flowkeep's\n", name, strings.Join(versions, ", "))
	return false, nil
}

// kept says which CustomResourceDefinitions stay, where they were not asked for.
func (u *uninstall) kept(ctx context.Context) string {
	n := 0
	for _, name := range doctor.OwnCRDs() {
		if is, err := u.there(ctx, registrations+name); err == nil && is && !u.crds {
			n++
		}
	}
	if n == 0 {
		return ""
	}
	return fmt.Sprintf(", but for %s (--crds)", plural(n, "CustomResourceDefinition", "CustomResourceDefinitions"))
}

// split has the DaemonSets apart.
func split(paths []string) (others, daemons []string) {
	for _, path := range paths {
		if strings.HasPrefix(path, ownApps+"/daemonsets/") {
			daemons = append(daemons, path)
		} else {
			others = append(others, path)
		}
	}
	return others, daemons
}

// unwired waits until Flowkeep's own pods that it wired are gone: without netplugin no runtime could take their links away, and they would keep
// the namespace.
func (u *uninstall) unwired(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, u.wait)
	defer cancel()
	tick := time.NewTicker(250 * time.Millisecond)
	defer tick.Stop()
	var wired []string
	for {
		var seen []string
		err := apiserver.Each(ctx, u.api, ownNamespace+"/pods", ofFlowkeep, func(p *corev1.Pod, _ int) {
			if !p.Spec.HostNetwork && p.Status.PodIP != "" {
				seen = append(seen, fmt.Sprintf("%s on %s", p.Name, p.Spec.NodeName))
			}
		})
		switch {
		case err != nil && ctx.Err() == nil:
			return err
		case err == nil && len(seen) == 0:
			return nil
		case err == nil:
			wired = seen
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			err := fmt.Errorf("deleted, but not gone within %v: pods %s; run it again when their nodes are back, or with --leave-nodes", u.wait, strings.Join(wired, ", "))
			if !u.leaveNodes || !errors.Is(ctx.Err(), context.DeadlineExceeded) {
				return err
			}
			fmt.Fprintln(u.out, "going on without:", err)
			return nil
		}
	}
}

// namedPods is how many pods are named where there are more.
const namedPods = 3

// wired refuses where pods would lose their network.
func (u *uninstall) wired(ctx context.Context) error {
	var some []string
	n := 0
	err := apiserver.Each(ctx, u.api, "/api/v1/pods", "", func(p *corev1.Pod, _ int) {
		if p.Spec.HostNetwork || p.Namespace == "flowkeep-system" || p.Status.PodIP == "" || p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed {
			return
		}
		if n++; n <= namedPods {
			some = append(some, fmt.Sprintf("%s/%s on %s", p.Namespace, p.Name, p.Spec.NodeName))
		}
	})
	if err != nil || n == 0 {
		return err
	}
	if n > namedPods {
		some = append(some, fmt.Sprintf("and %d more", n-namedPods))
	}
	return fmt.Errorf("not uninstalled, as %s would lose the network: %s; remove them first, or use --force", plural(n, "pod", "pods"), strings.Join(some, ", "))
}

// ending tells whether the namespace is on its way already: then a run before has done with the nodes.
func (u *uninstall) ending(ctx context.Context) (bool, error) {
	ns, err := apiserver.One[corev1.Namespace](ctx, u.api, ownNamespace)
	if apiserver.IsNotFound(err) {
		fmt.Fprintln(u.out, "the namespace flowkeep-system is gone already, so nodes are not looked at: netplugin clean removes what may be left on one")
		return true, nil
	}
	return err == nil && ns.DeletionTimestamp != nil, err
}

// abandon has pods that are to end forgotten on nodes that are left: where a kubelet is down nobody else would end them, nor the namespace. Of nodes
// that another run left it is those whose time is over.
func (u *uninstall) abandon(ctx context.Context, left []string) error {
	if !u.leaveNodes {
		return nil
	}
	var paths []string
	err := apiserver.Each(ctx, u.api, ownNamespace+"/pods", "", func(p *corev1.Pod, _ int) {
		if p.DeletionTimestamp != nil && (slices.Contains(left, p.Spec.NodeName) || time.Now().After(p.DeletionTimestamp.Time)) {
			paths = append(paths, ownNamespace+"/pods/"+url.PathEscape(p.Name))
		}
	})
	errs := []error{err}
	for _, path := range paths {
		if err := u.api.DeleteNow(ctx, path); !apiserver.IsNotFound(err) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// gone waits until nothing of it is there any more: until then it cannot be installed again.
func (u *uninstall) gone(ctx context.Context, paths, left []string) error {
	ctx, cancel := context.WithTimeout(ctx, u.wait)
	defer cancel()
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for {
		err := u.abandon(ctx, left)
		paths = slices.DeleteFunc(paths, func(path string) bool {
			is, e := u.there(ctx, path)
			err = errors.Join(err, e)
			return !is && e == nil
		})
		if err != nil && ctx.Err() == nil {
			return err
		}
		if len(paths) == 0 {
			fmt.Fprintln(u.out, "Flowkeep is uninstalled"+u.kept(ctx))
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("deleted, but not gone within %v: %s%s; kubectl get it -o yaml tells what it waits for", u.wait, short(paths[0]), more(len(paths)-1))
		}
	}
}

func more(n int) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprintf(" and %d more", n)
}

// short is kind and name of an object.
func short(path string) string {
	return filepath.Join(filepath.Base(filepath.Dir(path)), filepath.Base(path))
}

// rest is in an order in which it can be repeated: the namespace last, and what it needs to be found before.
func (u *uninstall) rest() []string {
	paths := []string{ownApps + "/daemonsets/openvswitch"}
	for _, name := range ownClusterRoles {
		paths = append(paths, rbac+"/clusterroles/"+name)
	}
	for _, name := range ownBindings {
		paths = append(paths, rbac+"/clusterrolebindings/"+name)
	}
	for _, name := range ownSystemRoles {
		paths = append(paths, rbac+"/namespaces/kube-system/rolebindings/"+name, rbac+"/namespaces/kube-system/roles/"+name)
	}
	for _, name := range ownLeases {
		paths = append(paths, "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/"+name)
	}
	for _, name := range ownAdmission {
		paths = append(paths, admission+"/validatingadmissionpolicybindings/"+name, admission+"/validatingadmissionpolicies/"+name)
	}
	if u.crds {
		for _, name := range doctor.OwnCRDs() {
			paths = append(paths, registrations+name)
		}
	}
	return append(paths, ownNamespace)
}

// Flowkeep's objects outside its namespace, as deploy/ has them.
var (
	ownClusterRoles = []string{"flowkeep-view", "flowkeep-capture", "flowkeep-admin", "flowkeep-wait", "flowkeep-netmaster", "flowkeep-node-state-view", "flowkeep-node-state", "flowkeep-node-config",
		"flowkeep-macvtap-view", "flowkeep-macvtap", "flowkeep-policy-sync", "flowkeep-policy-sync-parameters", "flowkeep-policy-sync-kinds", "flowkeep-policy-sync-all-kinds", "flowkeep-fleet-view", "flowkeep-fleet-view-parameters"}
	ownBindings    = []string{"flowkeep-netmaster", "flowkeep-node-state", "flowkeep-macvtap", "flowkeep-policy-sync", "flowkeep-policy-sync-kinds"}
	ownSystemRoles = []string{"flowkeep-netmaster", "flowkeep-node-config", "flowkeep-policy-sync"}
	ownLeases      = []string{"flowkeep-node-config", "flowkeep-policy-sync"} // as their programs call them by default
	ownAdmission   = []string{"flowkeep-own-node"}
)

// findImage notes the image before the DaemonSet goes; a run that goes on finds it there.
func (u *uninstall) findImage(ctx context.Context, installed bool) error {
	const notes = ownNamespace + "/configmaps"
	if u.image == "" && installed {
		set, err := apiserver.One[appsv1.DaemonSet](ctx, u.api, ownApps+"/daemonsets/netplugin")
		if err != nil {
			return err
		}
		for _, c := range set.Spec.Template.Spec.Containers {
			if c.Name == "netplugin" {
				u.image = c.Image
			}
		}
	} else if u.image == "" {
		m, err := apiserver.One[corev1.ConfigMap](ctx, u.api, notes+"/"+note)
		if err == nil {
			u.image = m.Data["image"]
		}
		if err != nil && !apiserver.IsNotFound(err) || u.image != "" {
			return err
		}
	}
	if u.image == "" && !u.leaveNodes {
		return errors.New("no DaemonSet netplugin is there that would tell which image cleans the nodes: give --image, or --leave-nodes to leave them as they are")
	}
	if u.image == "" {
		return nil
	}
	body, err := json.Marshal(corev1.ConfigMap{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"}, ObjectMeta: metav1.ObjectMeta{Name: note}, Data: map[string]string{"image": u.image}})
	if err != nil {
		return err
	}
	if err := u.api.Delete(ctx, notes+"/"+note); err != nil && !apiserver.IsNotFound(err) { // of an installation before
		return err
	}
	return u.api.Create(ctx, notes, body)
}

// forget removes the pods that cleaned nodes before Flowkeep was installed again.
func (u *uninstall) forget(ctx context.Context) error {
	pods, _, err := u.pods(ctx)
	if err != nil {
		return err
	}
	for _, p := range pods {
		if err := u.api.DeleteNow(ctx, ownNamespace+"/pods/"+url.PathEscape(p.Name)); err != nil && !apiserver.IsNotFound(err) {
			return err
		}
	}
	return nil
}

func (u *uninstall) workloads(ctx context.Context, kind string) (names []string, err error) {
	err = apiserver.Each(ctx, u.api, ownApps+"/"+kind, ofFlowkeep, func(m *metav1.PartialObjectMetadata, _ int) { names = append(names, m.Name) })
	return names, err
}

// remove is fine with what is not there.
func (u *uninstall) remove(ctx context.Context, paths []string) error {
	var errs []error
	for _, path := range paths {
		switch err := u.api.Delete(ctx, path); {
		case apiserver.IsNotFound(err):
		case err != nil:
			errs = append(errs, fmt.Errorf("delete %s: %w", path, err))
		default:
			fmt.Fprintln(u.out, "deleted", short(path))
		}
	}
	return errors.Join(errs...)
}

// notClean is that nodes are not, whatever the API server says: these may be left.
type notClean struct{ error }

// nodes cleans all of them, and names those that are not.
func (u *uninstall) nodes(ctx context.Context) (left []string, _ error) {
	var names []string
	if err := apiserver.Each(ctx, u.api, "/api/v1/nodes", "kubernetes.io/os=linux", func(n *metav1.PartialObjectMetadata, _ int) { names = append(names, n.Name) }); err != nil {
		return nil, err
	}
	if u.image == "" {
		return names, notClean{errors.New("no image to clean nodes with, which are left as they are")}
	}
	ctx, cancel := context.WithTimeout(ctx, u.wait)
	defer cancel()
	var pods map[string]*corev1.Pod // that clean, by node
	begun := map[string]bool{}      // by this run
	tick := time.NewTicker(250 * time.Millisecond)
	defer tick.Stop()
	for {
		seen, busy, err := u.pods(ctx)
		if err == nil {
			pods = seen
			err = u.cleaners(ctx, slices.DeleteFunc(slices.Clone(names), func(n string) bool { return busy[n] || begun[n] }), pods, begun)
		}
		if err != nil && ctx.Err() == nil {
			return nil, err
		}
		left, why, more := unclean(names, pods, begun)
		if len(left) == 0 {
			fmt.Fprintf(u.out, "%s clean\n", plural(len(names), "node is", "nodes are"))
			return nil, nil
		}
		if !more {
			return left, notClean{fmt.Errorf("not clean: %s", strings.Join(why, "; "))}
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return left, notClean{fmt.Errorf("not clean within %v: %s", u.wait, strings.Join(why, "; "))}
		}
	}
}

// pods are those that clean, by node, and the nodes where netplugin has not ended yet.
func (u *uninstall) pods(ctx context.Context) (cleaners map[string]*corev1.Pod, busy map[string]bool, err error) {
	cleaners, busy = map[string]*corev1.Pod{}, map[string]bool{}
	err = apiserver.Each(ctx, u.api, ownNamespace+"/pods", ofFlowkeep, func(p *corev1.Pod, _ int) {
		switch {
		case p.Labels[cleanerLabel] != "" && p.DeletionTimestamp == nil:
			cleaners[p.Spec.NodeName] = p
		case p.Labels["app.kubernetes.io/name"] == "netplugin" && p.Status.Phase == corev1.PodRunning:
			busy[p.Spec.NodeName] = true
		}
	})
	return cleaners, busy, err
}

// unclean names nodes, and why; and tells whether waiting may help.
func unclean(names []string, pods map[string]*corev1.Pod, begun map[string]bool) (left, whys []string, more bool) {
	for _, n := range slices.Sorted(slices.Values(names)) {
		p := pods[n]
		if p != nil && p.Status.Phase == corev1.PodSucceeded {
			continue
		}
		why := "netplugin has not ended"
		if p != nil {
			why = reason(p)
		} else if begun[n] {
			why = "just begun"
		}
		more = more || p == nil || p.Status.Phase != corev1.PodFailed
		left, whys = append(left, n), append(whys, fmt.Sprintf("%s (%s)", n, oneLine.Replace(why)))
	}
	return left, whys, more
}

// reason is why a pod has not succeeded.
func reason(p *corev1.Pod) string {
	for _, s := range p.Status.ContainerStatuses {
		if t := s.State.Terminated; t != nil && t.Message != "" {
			return strings.TrimSpace(t.Message)
		}
		if w := s.State.Waiting; w != nil {
			return strings.TrimSpace(w.Reason + " " + w.Message)
		}
	}
	return string(p.Status.Phase)
}

// cleaners makes a pod on each of the nodes that has none, or one that has failed before.
func (u *uninstall) cleaners(ctx context.Context, names []string, pods map[string]*corev1.Pod, begun map[string]bool) error {
	for _, n := range names {
		if p := pods[n]; p != nil && p.Status.Phase != corev1.PodFailed {
			continue
		} else if p != nil {
			if err := u.api.Delete(ctx, ownNamespace+"/pods/"+url.PathEscape(p.Name)); err != nil && !apiserver.IsNotFound(err) {
				return err
			}
			delete(pods, n)
		}
		body, err := json.Marshal(u.cleaner(n))
		if err != nil {
			return err
		}
		switch err := u.api.Create(ctx, ownNamespace+"/pods", body); {
		case apiserver.IsConflict(err): // the one before is not gone yet
		case err != nil:
			return fmt.Errorf("start the pod that cleans %s: %w", n, err)
		default:
			begun[n] = true
		}
	}
	return nil
}

// cleaner runs in the node's network, whatever taints the node has, and says in its status why it failed.
func (u *uninstall) cleaner(node string) *corev1.Pod {
	args := []string{"netplugin", "clean", "--force", "--ovsdb=unix:/run/openvswitch/db.sock", "--ovs-run-dir=/run/openvswitch"}
	if u.state {
		args = append(args, "--state")
	}
	yes, root := true, int64(0)
	var mounts []corev1.VolumeMount
	var volumes []corev1.Volume
	// The parents of what goes, as a directory that is mounted cannot be removed.
	for i, dir := range []string{"/etc/cni/net.d", "/opt/cni/bin", "/run", "/var/lib"} {
		name := fmt.Sprint("host", i)
		mounts = append(mounts, corev1.VolumeMount{Name: name, MountPath: dir})
		volumes = append(volumes, corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: dir}}})
	}
	sum := sha256.Sum256([]byte(node))
	return &corev1.Pod{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("clean-%x", sum[:8]), Labels: map[string]string{cleanerLabel: "true", "app.kubernetes.io/part-of": "flowkeep"}},
		Spec: corev1.PodSpec{NodeName: node, HostNetwork: true, RestartPolicy: corev1.RestartPolicyNever, Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}}, AutomountServiceAccountToken: new(bool), Volumes: volumes,
			Containers: []corev1.Container{{Name: "clean", Image: u.image, ImagePullPolicy: corev1.PullIfNotPresent, Command: args, VolumeMounts: mounts, TerminationMessagePolicy: corev1.TerminationMessageFallbackToLogsOnError,
				SecurityContext: &corev1.SecurityContext{Privileged: &yes, RunAsUser: &root}}}}}
}
