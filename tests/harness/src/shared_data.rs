//! Envoy's shared data: one map per `vm_id` over all workers, one increasing cas over all of them.

use crate::status;
use std::collections::BTreeMap;

#[derive(Debug)]
pub(crate) struct SharedData {
    next_cas: u32,
    values: BTreeMap<(String, Vec<u8>), (Vec<u8>, u32)>,
}

impl Default for SharedData {
    fn default() -> Self {
        Self {
            next_cas: 1,
            values: BTreeMap::new(),
        }
    }
}

impl SharedData {
    pub fn get(&self, vm_id: &str, key: &[u8]) -> Option<&(Vec<u8>, u32)> {
        self.values.get(&(vm_id.to_owned(), key.to_vec()))
    }

    /// `cas` 0 is unconditional; another one counts only against a value that is there.
    pub fn set(&mut self, vm_id: &str, key: &[u8], value: &[u8], cas: u32) -> u32 {
        let at = (vm_id.to_owned(), key.to_vec());
        if let Some((_, there)) = self.values.get(&at)
            && cas != 0
            && cas != *there
        {
            return status::CAS_MISMATCH;
        }
        self.values.insert(at, (value.to_vec(), self.next_cas));
        // 0 is never given out.
        self.next_cas = self.next_cas.checked_add(1).unwrap_or(1);
        status::OK
    }

    pub fn keys(&self, vm_id: &str) -> Vec<String> {
        self.values
            .keys()
            .filter(|(id, _)| id == vm_id)
            .map(|(_, key)| String::from_utf8_lossy(key).into_owned())
            .collect()
    }
}
