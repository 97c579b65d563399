package ca

import "context"

// Pass is one look of a keeper's.
func Pass(ctx context.Context, k *Keeper) error { return k.pass(ctx) }
