// Package deviceplugin offers macvtap resources to the kubelet by its device plugin API (v1beta1).
//
// A Manager gets the resources that a node exposes (Set, idempotent) and has one plugin for each resource: a goroutine,
// a gRPC server on a socket in the kubelet's directory, and a registration. Trouble of one resource holds up no other.
//
// A plugin is well while the kubelet that it registered with follows its devices (ListAndWatch). It serves and
// registers again when kubelet.sock is another than the one it registered with: the kubelet was restarted, which
// removes all sockets from the directory, or the directory was recreated. It registers again when the kubelet hangs up.
// A stream that lives is left alone, whatever happens to files. Where there is no kubelet.sock it waits for one.
//
// A plugin of a resource that is exposed no more sends the kubelet an empty list of devices, so that nothing more is
// given out, and then ends its server. What pods hold is not touched by any of this.
package deviceplugin
