package main

import (
	"bufio"
	"context"
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
--leave-nodes to go on without it. Then it says how that node is cleaned when it is back: with --nodes, which makes the namespace flowkeep-system for
as long as the cleaning takes. It may be interrupted at any time, and repeated.`

// uninstall has the options of the command.
type uninstall struct {
	yes, force, crds, state, leaveNodes bool
	image                               string
	only                                []string // nodes, where all else is gone
	dirs                                places
	wait                                time.Duration
	out                                 io.Writer
	agreed                              func() bool
	api                                 *apiserver.Client
}

func uninstallCommand(o *options) *cobra.Command {
	u := &uninstall{}
	cmd := &cobra.Command{
		Use: "uninstall", Short: "Remove Flowkeep from the cluster and its nodes", Long: uninstallLong, Args: exactly(),
		Example: "  netctl uninstall\n  netctl uninstall --yes --force --state --crds\n  netctl uninstall --nodes node2 --image registry.example.org/flowkeep/flowkeep:v0.1.0",
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
	f.BoolVar(&u.state, "state", false, "remove /var/lib/flowkeep on the nodes too, and the state directories of node-state and macvtap")
	f.BoolVar(&u.leaveNodes, "leave-nodes", false, "go on although a node could not be cleaned")
	f.StringVar(&u.image, "image", "", "image with netplugin; default: that of the DaemonSet netplugin")
	f.StringSliceVar(&u.only, "nodes", nil, "clean these nodes alone, which were left when the rest was removed")
	f.StringVar(&u.dirs.cniConf, "cni-conf-dir", "", "nodes' directory of CNI configurations; default: that of the DaemonSet netplugin, or /etc/cni/net.d")
	f.StringVar(&u.dirs.cniBin, "cni-bin-dir", "", "nodes' directory of CNI plugins; default: that of the DaemonSet netplugin, or /opt/cni/bin")
	f.StringVar(&u.dirs.ovsRun, "ovs-run-dir", "", "nodes' directory of Open vSwitch's sockets; default: that of the DaemonSet netplugin, or /run/openvswitch")
	f.DurationVar(&u.wait, "wait", 2*time.Minute, "how long to wait for the nodes, and then for what was deleted to be gone")
	for _, name := range []string{"image", "nodes", "cni-conf-dir", "cni-bin-dir", "ovs-run-dir"} {
		_ = cmd.RegisterFlagCompletionFunc(name, cobra.NoFileCompletions)
	}
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
	if len(u.only) > 0 {
		return u.later(ctx)
	}
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
	return interruptible(ctx, func(ctx context.Context) error { return u.begin(ctx, first, rest, installed) })
}

func interruptible(ctx context.Context, do func(context.Context) error) error {
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer stop()
	err := do(ctx)
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
		if left, err = u.nodes(ctx, u.allNodes); err != nil {
			if !u.leaveNodes || !errors.As(err, new(notClean)) || ctx.Err() != nil {
				return err
			}
			fmt.Fprintln(u.out, "going on without:", err)
		}
	}
	if err := u.remove(ctx, rest); err != nil {
		return err
	}
	if err := u.gone(ctx, append(first, rest...), left); err != nil {
		return err
	}
	fmt.Fprintln(u.out, "Flowkeep is uninstalled"+u.kept(ctx))
	if len(left) > 0 {
		fmt.Fprintf(u.out, "as they were: %s; when back: %s\n", strings.Join(left, ", "), u.again(left))
	}
	return nil
}

// found returns the paths of what exists: what to delete first, and the rest.
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

// ours reports whether a CustomResourceDefinition is Flowkeep's: other projects use some of its names.
func (u *uninstall) ours(ctx context.Context, name string) (bool, error) {
	type definition struct {
		Metadata struct{ Labels map[string]string }
		Spec     struct{ Versions []struct{ Name string } }
	}
	d, err := apiserver.One[definition](ctx, u.api, registrations+name)
	if err != nil {
		return false, err
	}
	var versions []string
	for _, v := range d.Spec.Versions {
		versions = append(versions, v.Name)
	}
	partOf := d.Metadata.Labels["app.kubernetes.io/part-of"]
	if doctor.OwnCRD(doctor.CRD{Name: name, Versions: versions, PartOf: partOf}) {
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

// split separates the DaemonSets from other paths.
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

// ending reports whether the namespace is gone or terminating: then an earlier run has cleaned the nodes.
func (u *uninstall) ending(ctx context.Context) (bool, error) {
	ns, err := apiserver.One[corev1.Namespace](ctx, u.api, ownNamespace)
	if apiserver.IsNotFound(err) {
		fmt.Fprintln(u.out, "the namespace flowkeep-system is gone already, so nodes are not looked at: netplugin clean removes what may be left on one")
		return true, nil
	}
	return err == nil && ns.DeletionTimestamp != nil, err
}

// abandon deletes terminating pods at once: on the nodes that are left, and elsewhere once their grace period is over.
// A kubelet that is down would keep them, and so the namespace.
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

// short returns the resource and the name of an object.
func short(path string) string {
	return filepath.Join(filepath.Base(filepath.Dir(path)), filepath.Base(path))
}

// rest returns what to delete after the workloads, in an order that allows another run: the namespace comes last.
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
		"flowkeep-services-view",
		"flowkeep-macvtap-view", "flowkeep-macvtap", "flowkeep-policy-sync", "flowkeep-policy-sync-parameters", "flowkeep-policy-sync-secrets", "flowkeep-policy-sync-kinds", "flowkeep-policy-sync-all-kinds", "flowkeep-fleet-view", "flowkeep-fleet-view-parameters"}
	ownBindings    = []string{"flowkeep-netmaster", "flowkeep-node-state", "flowkeep-macvtap", "flowkeep-policy-sync", "flowkeep-policy-sync-kinds"}
	ownSystemRoles = []string{"flowkeep-netmaster", "flowkeep-node-config", "flowkeep-policy-sync"}
	ownLeases      = []string{"flowkeep-node-config", "flowkeep-policy-sync"} // as their programs call them by default
	ownAdmission   = []string{"flowkeep-own-node"}
)

func (u *uninstall) workloads(ctx context.Context, kind string) (names []string, err error) {
	err = apiserver.Each(ctx, u.api, ownApps+"/"+kind, ofFlowkeep, func(m *metav1.PartialObjectMetadata, _ int) { names = append(names, m.Name) })
	return names, err
}

// remove deletes objects and ignores those that do not exist.
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
