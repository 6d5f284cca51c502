mod under_loom;
mod without_fence;
